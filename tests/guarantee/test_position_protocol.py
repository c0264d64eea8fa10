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
from support.data_source_with_rooms import commit_parcels
from support.query_on_disk import ARROW, STRUCT, Planned, QueryOnDisk, Topic
from support.recoveries import only_sink

from pgonce.offsets_store.errors import RefusedBatch
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
WITHOUT: dict[str, str] = {}

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
        return QueryOnDisk(self.directory / name, self.topic)

    def commit(self, query, planned, way, *, run_id=None, recreated=""):
        """Hand a batch in, as planner and commit worker of this way do; another run's may come late."""
        raw = {"url": self.url, "table": self.table, "checkpointLocation": str(query.root)}
        options = parse_options({**raw, **way}, overwrite=False)
        entry = newest_uncommitted_entry(str(query.root))
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
    """A query that has published up to 100, and has run 10 to 40 again on an older copy of its checkpoint."""
    query = job.query()
    for count in (10, 10, 80):
        job.run(query, query.plan({0: count}), POSITIONS)
    query.roll_back(0)
    query.start()
    assert job.run(query, query.plan({0: 30}), POSITIONS) is Verdict.OVERLAP
    return query


def test_a_replacement_drops_all_that_is_stored(job, behind):
    """What the old query has stored counts, not where its last batch ended."""
    new = job.query("new")
    assert job.run(new, new.plan({0: 100}), POSITIONS | {"replaces": behind.query_id}) is Verdict.OVERLAP
    assert job.is_whole()


@pytest.mark.parametrize("way", [POSITIONS, WITHOUT])
def test_the_printed_starting_offsets_are_taken(job, behind, way):
    """What `pgonce offsets` prints is where a replacement may start."""
    printed = json.loads(OffsetsStore(job.url).starting_offsets(behind.query_id))
    assert printed == {"t": {"0": 100}}
    job.topic.partitions[0] += [1] * 5
    new = job.query("new")
    (new.root / "sources" / "0" / "0").write_bytes(b"\x00v1\n" + json.dumps(printed).encode())
    new.start()
    job.run(new, new.plan({0: 100}), {**way, "replaces": behind.query_id})
    assert job.is_whole()


def test_positions_cannot_be_left_out_while_the_query_is_behind_them(job, behind):
    """The next batch follows by its texts, and its rows are stored all the same."""
    behind.start()
    with pytest.raises(RefusedBatch, match=r"\[DISJOINT\].*positionColumns"):
        job.run(behind, behind.plan({0: 100}), WITHOUT)


def test_a_topic_that_ends_before_the_start_is_refused(job):
    """The topic was created again, and its rows are not those below the stored positions."""
    job.topic.partitions[0] = [1] * 20
    query = job.query()
    job.run(query, query.plan({0: 20}), POSITIONS)
    query.start()
    job.topic.partitions[0] = [1] * 5
    with pytest.raises(RefusedBatch, match="BACKWARD"):
        job.run(query, query.plan({0: 0}), POSITIONS, recreated="new ")


@pytest.mark.parametrize("way", [POSITIONS, WITHOUT])
def test_another_drivers_entry_of_the_same_number_is_no_proof(job, way):
    """A driver that was taken for dead plans its batch once the next driver has written that entry, and publishes."""
    query = job.query()
    job.run(query, query.plan({0: 10}), POSITIONS)
    late_run = query.run_id
    query.start()
    planned = query.plan({0: 30})
    query.write_entry(planned)
    late = Planned(1, planned.start, {0: 20}, planned.planned_at_ms + 1)
    assert job.commit(query, late, POSITIONS, run_id=late_run) is Verdict.NEW
    query.start()
    again = query.plan({})
    if way is WITHOUT:
        with pytest.raises(RefusedBatch, match="CHANGED"):
            job.run(query, again, way)
        return
    assert job.run(query, again, way) is Verdict.OVERLAP
    job.run(query, query.plan({0: 100}), way)
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
    job.run(query, query.plan({0: 10, 1: 10}), POSITIONS)
    job.run(query, query.plan({1: 40}), POSITIONS)
    query.roll_back(0)
    moved(query, 0, {"t": {"0": 20, "1": 10}})
    query.start()
    planned = query.plan({0: 5})
    query.write_entry(planned)
    with pytest.raises(RefusedBatch):
        job.commit(query, planned, POSITIONS)
    accept(job.url, only_sink(job.url, query.query_id), planned.batch_id, "10 to 19 of partition 0 are gone")
    query.start()
    assert job.run(query, query.plan({}), POSITIONS) is Verdict.ACCEPTED
    job.run(query, query.plan({0: 100, 1: 100}), POSITIONS)
    missing = {f"0-{at}-0" for at in range(10, 20)}
    assert job.stored() == Counter(
        row for p, at, n in job.topic.rows({}, job.topic.heads) if (row := f"{p}-{at}-{n}") not in missing
    )


def test_an_acceptance_that_was_not_needed_lets_nothing_through_later(job):
    """Once its batch is published, with or without it, a person's word is used up."""
    query = job.query()
    job.run(query, query.plan({0: 10}), POSITIONS)
    accept(job.url, only_sink(job.url, query.query_id), 1, "let it through")
    assert job.run(query, query.plan({0: 10}), POSITIONS) is Verdict.NEW
    query.roll_back(0)
    moved(query, 0, {"t": {"0": 60}})
    query.start()
    with pytest.raises(RefusedBatch, match="DISJOINT"):
        job.run(query, query.plan({0: 20}), POSITIONS)


def test_the_view_shows_what_is_stored(job, behind, observer):
    """While a query is behind its positions, people see these."""
    assert observer.execute("SELECT end_offset::int FROM pgonce.current_offsets").fetchone() == (100,)
