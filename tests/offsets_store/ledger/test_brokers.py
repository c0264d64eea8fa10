"""Which brokers a query names, as far as the ledger may know."""

from __future__ import annotations

import doctest

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from support.batches import make_planned_batch
from support.ledger_history import QUERY, publish

from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.ledger import brokers
from pgonce.offsets_store.ledger.brokers import note_brokers
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.identity import planned_batch


def noted(admin):
    """What the ledger has."""
    return admin.execute("SELECT query_id, bootstrap_servers FROM pgonce.brokers").fetchall()


def test_the_examples_in_its_docstrings_hold():
    """No login, and no protocol, comes out of a list of servers."""
    assert doctest.testmod(brokers).failed == 0


def test_the_newest_ones_count(url, admin):
    """What a later run names takes the place of what was there; the same again changes nothing."""
    ensure_ledger(url)
    for servers in ("a:1", "b:2,c:3", "b:2,c:3"):
        note_brokers(url, QUERY, servers).join()
    assert noted(admin) == [(QUERY, "b:2,c:3")]


def test_nothing_is_raised_and_nobody_waits(url, monkeypatch):
    """Without a ledger, with a wrong database, or while somebody locks the table, a query goes on."""
    monkeypatch.setattr(brokers, "_PAUSE_SECONDS", 0.01)
    note_brokers(url, QUERY, "a:1").join()
    note_brokers(make_conninfo(url, dbname="not_there"), QUERY, "a:1").join()
    assert note_brokers(url, QUERY, "user:secret@a:1") is None


def test_a_first_query_creates_the_ledger_meanwhile(url, admin, monkeypatch):
    """Brokers are asked before the first batch has made the ledger: noting them is tried again."""
    monkeypatch.setattr(brokers, "_PAUSE_SECONDS", 1.0)
    noting = note_brokers(url, QUERY, "a:1")
    publish(url, 0, None)
    noting.join()
    assert noted(admin) == [(QUERY, "a:1")]


@pytest.mark.kafka
def test_a_run_notes_them_once(url, admin, kafka):
    """With its first batch; the planner, who knows no run, does not."""
    ensure_ledger(url)
    asked = Brokers(kafka.bootstrap_servers, (("client.id", "secret"),))
    batch = make_planned_batch(0, query_id=QUERY, run_id="")
    planned_batch.with_topic_ids(batch, asked, url)
    assert noted(admin) == []
    batch = make_planned_batch(0, query_id=QUERY, run_id="a run of this test")
    planned_batch.with_topic_ids(batch, asked, url)
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(1000):
            if found := noted(connection):
                break
            connection.execute("SELECT pg_sleep(0.01)")
    assert found == [(QUERY, kafka.bootstrap_servers)]
