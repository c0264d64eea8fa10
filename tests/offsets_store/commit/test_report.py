"""The line that each committed batch and batch job leaves in the log, and what those hear who listen."""

from __future__ import annotations

import json
import logging

import pytest
from support.batches import make_batch, make_planned_batch
from support.committed_rows import appending, job, settings

from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.report import payload
from pgonce.offsets_store.commit.retrying import commit_batch, what_became_of
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.verdict.decide import Verdict

KEYS = ["query", "query_id", "batch", "batch_key", "sink", "verdict", "rows", "seconds", "transport"]


@pytest.fixture
def said(caplog, events):
    """What the log has of commits by now: the keys of each line, without the time that it took, and its text."""
    caplog.set_level(logging.INFO, "pgonce")

    def lines():
        records = [record for record in caplog.records if hasattr(record, "verdict")]
        assert all(record.levelno == logging.INFO and record.name == "pgonce" for record in records)
        assert all(0 <= record.seconds < 60 for record in records)
        return [
            (
                {key: getattr(record, key) for key in KEYS if hasattr(record, key) and key != "seconds"},
                record.getMessage().replace(f"seconds={record.seconds}", "seconds=N"),
            )
            for record in records
        ]

    return lines


def test_a_published_batch_and_its_replay_leave_a_line_each(url, said):
    """The line has what stands in the ledger, and a replay wrote no row."""
    orders = {"query_name": "orders"}
    commit_batch(settings(url), make_planned_batch(**orders), appending(1, 2))
    commit_batch(settings(url), make_planned_batch(run_id="run 2", **orders), appending(1, 2))
    same = {"query": "orders", "query_id": "q1", "batch": 0, "sink": "public.events"}
    assert said() == [
        (
            {**same, "verdict": "NEW", "rows": 2, "transport": "test"},
            "published query=orders batch=0 sink=public.events verdict=NEW rows=2 seconds=N transport=test",
        ),
        (
            {**same, "verdict": "REPLAY", "rows": 0, "transport": None},
            "skipped query=orders batch=0 sink=public.events verdict=REPLAY rows=0 seconds=N",
        ),
    ]


def test_a_batch_whose_answer_was_lost_leaves_one_line_with_its_rows(url, proxy, said):
    """The second try only finds the token of the first, which wrote the rows; by another process they are unknown."""
    commit_batch(settings(url), make_batch(0), appending(1))
    proxy.cut_after_commit(touching="events")
    landed = make_batch(1)
    commit_batch(settings(proxy.url), landed, appending(2, 3))
    assert proxy.hits["cut_after_commit"] == 1
    what_became_of(settings(url), landed, lambda _: "public.events")
    found = [(keys["batch"], keys["verdict"], keys["rows"], keys["transport"]) for keys, _ in said()]
    assert found == [(0, "NEW", 1, "test"), (1, "LANDED", 2, "test"), (1, "LANDED", None, None)]


def test_a_batch_job_leaves_a_line_with_its_key(url, said):
    """A job has a key in place of a query and a batch."""
    for _ in range(2):
        commit_job(settings(url), job(), appending(1))
    same = {"batch_key": "monday", "sink": "public.events"}
    assert said() == [
        (
            {**same, "verdict": "PUBLISHED", "rows": 1, "transport": "test"},
            "published batch_key=monday sink=public.events verdict=PUBLISHED rows=1 seconds=N transport=test",
        ),
        (
            {**same, "verdict": "SKIPPED", "rows": 0, "transport": None},
            "skipped batch_key=monday sink=public.events verdict=SKIPPED rows=0 seconds=N",
        ),
    ]


def test_what_was_not_committed_leaves_no_such_line(url, said):
    """A batch that is refused is told by its error, and one about which was only asked by nothing."""
    with pytest.raises(PgonceError, match="UNKNOWN"):
        commit_batch(settings(url), make_batch(7), appending(1))
    what_became_of(settings(url), make_batch(0), lambda _: "public.events")
    assert said() == []


def test_a_name_forges_neither_a_line_nor_a_key(url, said):
    """Names are quoted where they would be read as something else, and end no line in a user's own layout either."""
    name = 'a verdict="x"\nCRITICAL'
    batch = make_planned_batch(query_name=name)
    commit_batch(settings(url), batch, Work(lambda _: "=", appending(1).publish))
    ((keys, text),) = said()
    assert keys["query"] == 'a verdict="x"\\nCRITICAL'
    assert text.startswith('published query="a verdict=\\"x\\"\\\\nCRITICAL" batch=0 sink="=" verdict=NEW ')


@pytest.fixture
def listener(admin, events):
    """A session that listens to the channel "batches"."""
    admin.execute("LISTEN batches")
    return admin


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
    done = [commit_job(told, job(), work) for _ in "ab"]
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
