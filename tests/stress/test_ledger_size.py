"""
A ledger with many records is asked and written by its keys: no statement reads a table of it from end to end.

Covers: offsets_store.ledger.record.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from itertools import pairwise

import pytest
from support.batches import make_planned_batch
from support.benchmark_modules import benchmark_module

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger import record
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict

WRITERS, BATCHES = 10, 1000
LARGE = ("batches", "replays", "runs", "progress")


@pytest.fixture
def admin(admin, url):
    """A connection to a ledger of 10,000 batches."""
    ensure_ledger(url)
    with benchmark_module("ledger_rows") as rows:
        rows.fill(admin, WRITERS, BATCHES, every=10)
    return admin


def scans(admin):
    """For each large table, how often it was read from end to end, and how often by an index."""
    # Within a transaction, and in Postgres 14 for half a second, statistics stay as they were first seen.
    admin.execute("SELECT pg_stat_clear_snapshot()")
    found = admin.execute(
        "SELECT relname, seq_scan, idx_scan FROM pg_stat_user_tables WHERE schemaname = 'pgonce' "
        "AND relname = ANY (%s)",
        [list(LARGE)],
    ).fetchall()
    return {name: (seq, idx) for name, seq, idx in found}


def settled(admin, changed_since=None):
    """The scans, once the sessions that made them have reported and no more reports come in."""
    until = time.monotonic() + 20
    before = None
    while (now := scans(admin)) != before or now == changed_since:
        assert time.monotonic() < until, "no session reported its scans"
        before = now
        time.sleep(1.2)
    return now


def next_batch(admin):
    """The batch that follows for one of the writers, and its sink."""
    query, sink, last, end, log = admin.execute(
        "SELECT query_id, sink_name, last_batch_id, w.end_offsets, offset_log FROM pgonce.writers AS w JOIN "
        "pgonce.batches AS b ON (b.writer_id, b.batch_id) = (w.writer_id, w.last_batch_id) ORDER BY w.writer_id LIMIT 1"
    ).fetchone()
    batch = make_planned_batch(
        last + 1,
        "a new run",
        query_id=query,
        previous_offset_log=log,
        start=end,
        end={"0": {"orders": dict.fromkeys(end["0"]["orders"], 10**9)}},
    )
    return batch, Work(lambda _: sink, lambda *_: Published(0, "inline"))


def test_no_statement_reads_a_whole_table(admin, url):
    """Commits, replays, prunes and every question to the store use indexes on the ledger's large tables."""
    batch, work = next_batch(admin)
    before = settled(admin)
    assert commit_batch(CommitSettings(url), batch, work) is Verdict.NEW
    again = replace(batch, run_id="a second run", attempt=uuid.uuid4())
    assert commit_batch(CommitSettings(url), again, work) is Verdict.REPLAY
    store = OffsetsStore(url)
    assert store.latest(batch.query_id).batch_id == batch.batch_id
    assert len(store.history(batch.query_id)) == 20
    assert [len(lag) for _, lag in store.status_of(batch.query_id)] == [8]
    assert len(store.status()) == WRITERS
    # A session reports what it did when it ends, at the latest.
    engine_for(url).dispose()
    after = settled(admin, changed_since=before)
    assert {name: after[name][0] - before[name][0] for name in LARGE} == dict.fromkeys(LARGE, 0)
    assert all(after[name][1] > before[name][1] for name in LARGE)


def test_a_lowered_retention_is_caught_up_with_bit_by_bit(admin, url, monkeypatch):
    """Prunes after retainBatches was lowered delete so many at a time until as many are kept, of this writer only."""
    monkeypatch.setattr(record, "PRUNE_AT_MOST", 600)
    batch, work = next_batch(admin)
    kept = []
    while batch.batch_id < BATCHES + 40:
        assert commit_batch(CommitSettings(url, retain_batches=100), batch, work) is Verdict.NEW
        kept.append(admin.execute("SELECT count(*) FROM pgonce.batches WHERE writer_id = 1").fetchone()[0])
        batch = make_planned_batch(
            batch.batch_id + 1,
            batch.run_id,
            query_id=batch.query_id,
            previous_offset_log=batch.offset_log,
            start=batch.end,
            end=batch.end,
        )
    drops = [before + 1 - now for before, now in pairwise(kept) if now <= before]
    # Batches 1008, 1024 and, with nothing more to catch up with, 16 at a time.
    assert drops == [600, BATCHES + 25 - 600 - 100]
    others = admin.execute("SELECT DISTINCT count(*) FROM pgonce.batches WHERE writer_id > 1 GROUP BY writer_id")
    assert others.fetchall() == [(BATCHES,)]
