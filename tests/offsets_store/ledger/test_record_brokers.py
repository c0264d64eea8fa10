"""
Which brokers a query names, as far as the ledger may know.

Covers: offsets_store.ledger.record.
"""

from __future__ import annotations

import doctest
from dataclasses import replace

import pytest
from support.batches import make_planned_batch
from support.committed_rows import appending, settings
from support.ledger_history import QUERY, publish

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.kafka import settings as kafka_settings
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.sink.identity.planned_batch import with_topic_ids


def noted(admin):
    """What the ledger has."""
    return admin.execute("SELECT query_id, bootstrap_servers FROM pgonce.brokers").fetchall()


def test_no_login_and_no_protocol_comes_out_of_a_list_of_servers():
    """As the example in the docstring says."""
    assert doctest.testmod(kafka_settings).failed == 0


def test_the_newest_ones_count(url, admin):
    """What a later run names takes the place of what was there; a batch of the same run changes nothing."""
    publish(url, 0, None, bootstrap_servers="a:1")
    publish(url, 1, None, bootstrap_servers="z:9")
    assert noted(admin) == [(QUERY, "a:1")]
    publish(url, 2, None, run_id="the next run", bootstrap_servers="b:2,c:3")
    publish(url, 3, None, run_id="one without")
    assert noted(admin) == [(QUERY, "b:2,c:3")]


@pytest.mark.kafka
def test_a_run_notes_them_with_its_first_batch(url, admin, kafka, events):
    """The planner, who knows no run, does not."""
    asked = Brokers(kafka.bootstrap_servers, (("client.id", "secret"),))
    batch = make_planned_batch(0, query_id=QUERY)
    assert with_topic_ids(replace(batch, run_id=""), asked).bootstrap_servers == ""
    commit_batch(settings(url), with_topic_ids(batch, asked), appending(1))
    assert noted(admin) == [(QUERY, kafka.bootstrap_servers)]
