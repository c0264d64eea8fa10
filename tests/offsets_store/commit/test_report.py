"""The line that each committed batch and batch job leaves in the log, with keys that stay the same."""

from __future__ import annotations

import logging
import uuid

import pytest
from support.batches import make_batch, make_planned_batch
from support.committed_rows import appending, settings

from pgonce.offsets_store.commit.batch_job import commit_job
from pgonce.offsets_store.commit.retrying import commit_batch, what_became_of
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.batch_jobs import Job

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
        commit_job(settings(url), Job("monday", uuid.uuid4(), None), appending(1))
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
