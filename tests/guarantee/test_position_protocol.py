"""
Sequences in which positions, ranges and entries of `offsets/` tell different things: no row is lost or doubled.

Covers: sink.data_source.commit_parcels, sink.identity.from_checkpoint.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter

import psycopg
import pyarrow as pa
import pytest
from psycopg.types.json import Jsonb
from support.data_source_with_rooms import commit_parcels
from support.recoveries import only_sink
from support.sparse_query import ARROW, STRUCT, Planned, SparseQuery, Topic

from pgonce.offsets_store.errors import PgonceError, RefusedBatch
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.recovery.by_hand import accept
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.from_checkpoint import Origin
from pgonce.sink.identity.planned_batch import newest_uncommitted_entry
from pgonce.sink.options.sink_options import parse_options
from pgonce.sink.positions import encoded_rows, reach

POSITIONS = {"positionColumns": "topic,partition,offset"}
SPARSE = {**POSITIONS, "asyncProgressTrackingEnabled": "true"}
EVERY_ENTRY = {"asyncProgressTrackingEnabled": "true", "asyncProgressTrackingCheckpointIntervalMs": "0"}
SYNCHRONOUS: dict[str, str] = {}

_tables = itertools.count()


class Job:
    """A table, and the queries over one topic that write into it."""

    def __init__(self, url, directory, topic):
        self.url, self.directory, self.topic = url, directory, topic
        self.table = f"events_{next(_tables)}"
        with psycopg.connect(url, autocommit=True) as connection:
            columns = 'id text, topic text, "partition" int, "offset" bigint'
            connection.execute(f"CREATE TABLE {self.table} ({columns})".encode())

    def query(self, name="checkpoint"):
        """A query with a checkpoint of its own."""
        return SparseQuery(self.directory / name, self.topic)

    def commit(self, query, planned, way, *, run_id=None, recreated=""):
        """Hand a batch in, as the commit worker of this way does; another run's may come late."""
        raw = {"url": self.url, "table": self.table, "checkpointLocation": str(query.root)}
        options = parse_options({**raw, **way}, overwrite=False)
        is_asynchronous = "asyncProgressTrackingEnabled" in way
        entry = None if is_asynchronous else newest_uncommitted_entry(str(query.root))
        origin = Origin(query.query_id, run_id or query.run_id, planned.batch_id, entry, planned.planned_at_ms)
        rows = self.topic.rows(planned.start, planned.end)
        batch = pa.RecordBatch.from_pylist(
            [{"id": f"{recreated}{p}-{at}-{n}", "topic": "t", "partition": p, "offset": at} for p, at, n in rows],
            schema=ARROW,
        )
        places = options.positions.of(batch) if options.positions else None
        sent = encoded_rows(CopyEncoder(STRUCT).encode(batch), len(batch), places)
        parcel = Parcel(origin, 0, len(batch), inline=(sent,), reach=reach([places] if places else []))
        return commit_parcels(options, encoded_columns(STRUCT), [parcel], planned.batch_id)

    def run(self, query, planned, way, **more):
        """A batch from its entry to its commit."""
        query.write_entry(planned)
        verdict = self.commit(query, planned, way, **more)
        query.write_commit(planned)
        query.advance(planned)
        return verdict

    def unwritten(self, query, count):
        """A batch of a sparse log whose entry is not due."""
        planned = query.plan({0: count}, is_due=False)
        self.commit(query, planned, SPARSE)
        query.advance(planned)

    def copied(self):
        """The rows of the table and of the ledger, as an asynchronous standby has them."""
        with psycopg.connect(self.url) as connection:
            names = (self.table, "pgonce.writers", "pgonce.batches", "pgonce.runs")
            return {name: connection.execute(f"TABLE {name}".encode()).fetchall() for name in names}

    def fall_back(self, rows):
        """A failover to that standby."""
        with psycopg.connect(self.url) as connection:
            connection.execute("SET session_replication_role = replica")
            for name, found in rows.items():
                connection.execute(f"DELETE FROM {name}".encode())
                for row in found:
                    values = [Jsonb(value) if isinstance(value, (dict, list)) else value for value in row]
                    places = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {name} OVERRIDING SYSTEM VALUE VALUES ({places})".encode(), values)

    def stored(self):
        """The rows of the table, with how often each is there."""
        with psycopg.connect(self.url) as connection:
            return Counter(row[0] for row in connection.execute(f"SELECT id FROM {self.table}".encode()).fetchall())

    def is_whole(self):
        """Whether the table holds every row of the topic once."""
        return self.stored() == Counter(f"{p}-{at}-{n}" for p, at, n in self.topic.rows({}, self.topic.heads))


@pytest.fixture
def job(url, tmp_path):
    """A job over a topic of one partition with a hundred records."""
    return Job(url, tmp_path, Topic({0: [1] * 100}))


@pytest.fixture
def behind(job):
    """A query that has published up to 100, was killed before that was written down, and has run 10 to 40 again."""
    query = job.query()
    job.run(query, query.plan({0: 10}, is_due=True), SPARSE)
    job.unwritten(query, 10)
    job.unwritten(query, 80)
    query.start()
    assert job.run(query, query.plan({0: 30}, is_due=True), SPARSE) is Verdict.OVERLAP
    return query


def test_a_replacement_drops_all_that_is_stored(job, behind):
    """What the old query has stored counts, not where its last batch ended."""
    new = job.query("new")
    assert job.run(new, new.plan({0: 100}, is_due=True), POSITIONS | {"replaces": behind.query_id}) is Verdict.OVERLAP
    assert job.is_whole()


@pytest.mark.parametrize("way", [POSITIONS, SYNCHRONOUS])
def test_the_printed_starting_offsets_are_taken(job, behind, way):
    """What `pgonce offsets` prints is where a replacement may start."""
    printed = json.loads(OffsetsStore(job.url).starting_offsets(behind.query_id))
    assert printed == {"t": {"0": 100}}
    job.topic.partitions[0] += [1] * 5
    new = job.query("new")
    (new.root / "sources" / "0" / "0").write_bytes(b"\x00v1\n" + json.dumps(printed).encode())
    new.start()
    job.run(new, new.plan({0: 100}, is_due=True), {**way, "replaces": behind.query_id})
    assert job.is_whole()


@pytest.mark.parametrize("way", [SYNCHRONOUS, EVERY_ENTRY])
def test_positions_cannot_be_left_out_while_the_query_is_behind_them(job, behind, way):
    """The next batch follows by its texts, and its rows are stored all the same."""
    behind.start()
    with pytest.raises(RefusedBatch, match=r"\[DISJOINT\].*positionColumns"):
        job.run(behind, behind.plan({0: 100}, is_due=True), way)


def test_a_topic_that_ends_before_the_start_is_refused_under_a_sparse_log(job):
    """The entry is not known to be this run's, and still reason enough to refuse."""
    job.topic.partitions[0] = [1] * 20
    query = job.query()
    job.run(query, query.plan({0: 20}, is_due=True), SPARSE)
    query.start()
    job.topic.partitions[0] = [1] * 5
    with pytest.raises(RefusedBatch, match="BACKWARD"):
        job.run(query, query.plan({0: 0}, is_due=True), SPARSE, recreated="new ")


@pytest.mark.parametrize(("way", "before"), [(EVERY_ENTRY, 10), (SPARSE, 0)])
def test_a_late_worker_does_not_take_the_next_runs_entry(job, way, before):
    """A commit that outlives its driver finds the entry that the next driver has planned, which is not its own."""
    query = job.query()
    if before:
        job.run(query, query.plan({0: before}, is_due=True), way)
    late, late_run = query.plan({0: 5}, is_due=True), query.run_id
    query.start()
    again = query.plan({0: 60}, is_due=True)
    query.write_entry(again)
    with pytest.raises(PgonceError, match="CHECKPOINT_IN_USE"):
        job.commit(query, late, way, run_id=late_run)
    job.run(query, again, way)
    job.run(query, query.plan({0: 100}, is_due=True), way)
    assert job.is_whole()


def starts_again(job, query, way):
    """The verdict on the newest entry, run again, and then all is there; without positions that entry is refused."""
    query.start()
    again = query.plan({}, is_due=True)
    if way is SYNCHRONOUS:
        with pytest.raises(RefusedBatch, match="CHANGED"):
            job.run(query, again, way)
        return None
    verdict = job.run(query, again, POSITIONS | way)
    job.run(query, query.plan({0: 100}, is_due=True), POSITIONS | way)
    assert job.is_whole()
    return verdict


@pytest.mark.parametrize("way", [POSITIONS, SYNCHRONOUS])
def test_a_late_worker_records_no_entry_of_the_next_run(job, way):
    """An entry that came after the batch was planned is no proof of what the batch before was."""
    query = job.query()
    job.run(query, query.plan({0: 10}, is_due=True), SPARSE)
    job.unwritten(query, 10)
    job.unwritten(query, 10)
    late, late_run = query.plan({0: 10}, is_due=False), query.run_id
    query.start()
    query.write_entry(query.plan({0: 80}, is_due=True))
    assert job.commit(query, late, SPARSE, run_id=late_run) is Verdict.NEW
    starts_again(job, query, way)


@pytest.mark.parametrize("way", [SPARSE, EVERY_ENTRY, POSITIONS, SYNCHRONOUS])
def test_another_drivers_entry_of_the_same_number_is_no_proof(job, way):
    """A driver that was taken for dead plans its batch once the next driver has written that entry, and publishes."""
    query = job.query()
    job.run(query, query.plan({0: 10}, is_due=True), SPARSE)
    late_run = query.run_id
    query.start()
    planned = query.plan({0: 30}, is_due=True)
    query.write_entry(planned)
    late = Planned(1, planned.start, {0: 20}, False, False, planned.planned_at_ms + 1)
    assert job.commit(query, late, SPARSE, run_id=late_run) is Verdict.NEW
    assert starts_again(job, query, way) is (None if way is SYNCHRONOUS else Verdict.OVERLAP)


@pytest.mark.parametrize("reached", [5, 10])
def test_a_run_that_goes_on_after_a_failover_lost_its_batches_is_refused(job, reached):
    """The entry that Spark writes in the middle of the run is not taken for one that is run again."""
    query = job.query()
    job.run(query, query.plan({0: 10}, is_due=True), SPARSE)
    job.unwritten(query, 10)
    before = job.copied()
    query.start()
    job.run(query, query.plan({0: reached}, is_due=True), SPARSE)
    for _ in range(2):
        job.unwritten(query, 20)
    job.fall_back(before)
    planned = query.plan({0: 10}, is_due=True)
    query.write_entry(planned)
    with pytest.raises(RefusedBatch, match="GAP"):
        job.commit(query, planned, SPARSE)
    query.start()
    job.run(query, query.plan({}, is_due=True), SPARSE)
    job.run(query, query.plan({0: 100}, is_due=True), SPARSE)
    assert job.is_whole()


def moved(query, batch_id, offset):
    """An entry as a wrong copy of the checkpoint has it."""
    path = query.root / "offsets" / str(batch_id)
    head, _ = path.read_text().rsplit("\n", 1)
    path.write_text(f"{head}\n{json.dumps(offset)}")


def test_an_accepted_batch_forgets_nothing_that_is_stored(job):
    """A gap in one partition is accepted; what is stored of the other is not published again."""
    job.topic.partitions = {0: [1] * 50, 1: [1] * 50}
    query = job.query()
    job.run(query, query.plan({0: 10, 1: 10}, is_due=True), SPARSE)
    planned = query.plan({1: 40}, is_due=False)
    job.commit(query, planned, SPARSE)
    moved(query, 0, {"t": {"0": 20, "1": 10}})
    query.start()
    planned = query.plan({0: 5}, is_due=True)
    query.write_entry(planned)
    with pytest.raises(RefusedBatch):
        job.commit(query, planned, SPARSE)
    accept(job.url, only_sink(job.url, query.query_id), planned.batch_id, "10 to 19 of partition 0 are gone")
    query.start()
    assert job.run(query, query.plan({}, is_due=True), SPARSE) is Verdict.ACCEPTED
    job.run(query, query.plan({0: 100, 1: 100}, is_due=True), SPARSE)
    missing = {f"0-{at}-0" for at in range(10, 20)}
    assert job.stored() == Counter(
        row for p, at, n in job.topic.rows({}, job.topic.heads) if (row := f"{p}-{at}-{n}") not in missing
    )


def test_an_acceptance_that_was_not_needed_lets_nothing_through_later(job):
    """Once its batch is published, with or without it, a person's word is used up."""
    query = job.query()
    job.run(query, query.plan({0: 10}, is_due=True), POSITIONS)
    accept(job.url, only_sink(job.url, query.query_id), 1, "let it through")
    assert job.run(query, query.plan({0: 10}, is_due=True), POSITIONS) is Verdict.NEW
    query.roll_back(0)
    moved(query, 0, {"t": {"0": 60}})
    query.start()
    with pytest.raises(RefusedBatch, match="DISJOINT"):
        job.run(query, query.plan({0: 20}, is_due=True), POSITIONS)


def test_the_view_shows_what_is_stored(job, behind, observer):
    """While a query is behind its positions, people see these."""
    assert observer.execute("SELECT end_offset::int FROM pgonce.current_offsets").fetchone() == (100,)
