"""Committed batches are told to those who listen, by the transaction that records them."""

from __future__ import annotations

import json
import uuid

import psycopg
import pytest
from support.batches import make_planned_batch
from support.committed_rows import TABLE, appending, settings

from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.report import payload
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.verdict.decide import Verdict


@pytest.fixture
def listener(url):
    """A session that listens to the channel "batches", with the target table made."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("LISTEN batches")
        yield connection


def heard(listener):
    """The payloads that have been delivered by now."""
    listener.execute("SELECT 1")
    return [json.loads(notify.payload) for notify in listener.notifies(timeout=0.2)]


def test_a_published_batch_is_told_once_and_a_replay_is_not(url, listener):
    """The batch that is published is told, with its rows; a replay of it tells nobody."""
    batch = make_planned_batch(query_name="orders")
    assert commit_batch(settings(url, notify_channel="batches"), batch, appending(1, 2)) is Verdict.NEW
    assert heard(listener) == [
        {
            "query_id": "q1",
            "query_name": "orders",
            "sink": "public.events",
            "generation": 0,
            "batch_id": 0,
            "rows": 2,
            "tables": None,
        }
    ]
    again = make_planned_batch(run_id="run 2", query_name="orders")
    assert commit_batch(settings(url, notify_channel="batches"), again, appending(1, 2)) is Verdict.REPLAY
    assert heard(listener) == []


def test_nobody_is_told_without_a_channel_or_without_a_commit(url, listener):
    """Without the option there is no notification, nor for a batch that fails after it was written."""
    assert commit_batch(settings(url), make_planned_batch(0), appending(1)) is Verdict.NEW

    def fail(connection, batch, stored):
        appending(2).publish(connection, batch, stored)
        raise ValueError("after the rows")

    work = Work(lambda _: "public.events", fail)
    with pytest.raises(ValueError, match="after the rows"):
        commit_batch(settings(url, notify_channel="batches"), make_planned_batch(1), work)
    assert heard(listener) == []


def test_it_comes_after_the_rows_can_be_seen(url, listener, observer):
    """While the batch is open nobody is told; who is told finds the batch in the ledger."""
    seen = []

    def publish(connection, batch, stored):
        published = appending(1).publish(connection, batch, stored)
        seen.append(heard(listener))
        return published

    commit_batch(
        settings(url, notify_channel="batches"), make_planned_batch(), Work(lambda _: "public.events", publish)
    )
    assert seen == [[]]
    assert [told["batch_id"] for told in heard(listener)] == [0]
    assert observer.execute("SELECT batch_id FROM pgonce.batches").fetchall() == [(0,)]


def test_a_published_batch_job_is_told_and_a_skipped_one_is_not(url, listener):
    """A batch job that is published is told by its key; one that is skipped is not."""
    work = Work(lambda _: "public.events", lambda *_: Published(7, "inline", targets={"public.events": 1}))
    told = settings(url, notify_channel="batches")
    done = [commit_job(told, Job("monday", uuid.uuid4()), work) for _ in "ab"]
    assert [each.verdict for each in done] == [JobVerdict.PUBLISHED, JobVerdict.SKIPPED]
    assert heard(listener) == [
        {"sink": "public.events", "batch_key": "monday", "rows": 7, "tables": {"public.events": 7}}
    ]


@pytest.mark.parametrize(("length", "missing"), [(100, []), (2700, ["tables"]), (9000, ["tables", "query_name"])])
def test_what_is_too_long_is_left_out(length, missing):
    """The names of tables go first, and then that of the query."""
    what = {"query_name": "q" * length, "sink": "s", "tables": {"t" * length * 2: 1}, "batch_id": 3}
    text = payload(what)
    assert len(text.encode()) < 8000
    assert [name for name, value in json.loads(text).items() if value is None] == sorted(missing)
