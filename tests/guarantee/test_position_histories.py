"""
Killed anywhere, and put back to older entries: with positions in the rows, the table is the source all the same.

Covers: sink.data_source.promise.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from functools import partial

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.data_source_with_rooms import commit_parcels, receiver_for
from support.query_on_disk import ARROW, STRUCT, QueryOnDisk, Topic

from pgonce.sink.data_source.offer import offered
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.data_source.stager import stage_rows
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import ATTEMPT_COLUMN, encoded_columns
from pgonce.sink.identity.from_checkpoint import Origin
from pgonce.sink.identity.planned_batch import newest_uncommitted_entry, staging_table
from pgonce.sink.options.sink_options import parse_options
from pgonce.sink.positions import encoded_rows, reach

_tables = itertools.count()


class Job:
    """A query with the sink under test."""

    def __init__(self, url, root, topic, *, written):
        self.table = f"events_{os.getpid()}_{next(_tables)}"
        self.url, self.topic = url, topic
        self.query = QueryOnDisk(root, topic)
        self.options = parse_options(
            {
                "url": url,
                "table": self.table,
                "checkpointLocation": str(root),
                "positionColumns": "topic,partition,offset",
                "writePositions": str(written).lower(),
                "receiver": "127.0.0.1",
            },
            overwrite=False,
        )
        with psycopg.connect(url, autocommit=True) as connection:
            columns = 'topic text, partition int, "offset" bigint'
            connection.execute(f"CREATE TABLE {self.table} (id text{f', {columns}' if written else ''})".encode())

    def commit(self, planned, *, ways, between=lambda: None):
        """Hand the batch in as Spark's tasks do, one for each of the ways, and its commit worker."""
        receiver = receiver_for(self.options, self.written)
        entry = newest_uncommitted_entry(self.options.checkpoint_location)
        origin = Origin(self.query.query_id, self.query.run_id, planned.batch_id, entry, planned.planned_at_ms)
        rows = self.topic.rows(planned.start, planned.end)
        parcels = []
        for number, way in enumerate(ways):
            # Rows of one record stay together, as those of one partition's range need not.
            mine = [row for row in rows if (row[0] + row[1]) % len(ways) == number]
            batch = pa.RecordBatch.from_pydict(
                {
                    "id": [f"{p}-{offset}-{n}" for p, offset, n in mine],
                    "topic": ["t"] * len(mine),
                    "partition": [p for p, _, _ in mine],
                    "offset": [offset for _, offset, _ in mine],
                },
                schema=ARROW,
            )
            where = self._where(origin, number, batch, way if mine else "inline", receiver)
            reached = reach([self.options.positions.of(batch)])
            parcels.append(Parcel(origin, number, len(batch), reach=reached, offer=offered(receiver), **where))
        between()
        return commit_parcels(self.options, encoded_columns(self.written), parcels, planned.batch_id)

    @property
    def written(self):
        """The columns that the table has."""
        return self.options.positions.without(STRUCT)

    def _where(self, origin, number, batch, way, receiver):
        if way == "inline":
            return {"inline": (self._encoded(batch),)}
        # What is received in part is sent row by row, up to the middle.
        sent = {"staged": 0, "received": len(batch), "in part": len(batch) // 2}[way]
        rows = [(self._encoded(batch.slice(n, 1)), batch.slice(n, 1)) for n in range(sent)]
        staged = ()
        if sent < len(batch):
            encoder, table = CopyEncoder(STRUCT, extra={ATTEMPT_COLUMN: number}), staging_table(self.options, origin)
            stage_rows(self.url, table, encoded_columns(STRUCT), [encoder.encode(batch.slice(sent))])
            staged = ((number, len(batch) - sent),)
        if not sent:
            return {"staged": staged}
        assert receiver.call().send_rows(origin, number, number, iter(rows)).rows == sent
        return {"received": (number, sent), "staged": staged}

    def _encoded(self, batch):
        body = CopyEncoder(self.written).encode(batch.select(self.written.names))
        return encoded_rows(body, len(batch), self.options.positions.of(batch))

    def stored(self):
        """The rows of the table, with how often each is there."""
        with psycopg.connect(self.url) as connection:
            return Counter(row[0] for row in connection.execute(f"SELECT id FROM {self.table}".encode()).fetchall())

    def recorded(self):
        """Rows and dropped rows, as the ledger counts them."""
        with psycopg.connect(self.url) as connection:
            return connection.execute(
                "SELECT coalesce(sum(rows), 0), coalesce(sum(dropped_rows), 0) FROM pgonce.batches "
                "JOIN pgonce.writers USING (writer_id) WHERE query_id = %s",
                [self.query.query_id],
            ).fetchone()


# What a run does with one batch: how far it advances, how tasks send it, and how it ends. Then it may go on with an
# older copy of the checkpoint, which lacks the newest entries.
BATCHES = st.fixed_dictionaries(
    {
        "advance": st.dictionaries(st.integers(0, 2), st.integers(0, 6), max_size=3),
        "ways": st.lists(st.sampled_from(["inline", "staged", "received", "in part"]), min_size=1, max_size=3),
        "receiver": st.sampled_from(["lives"] * 15 + ["is killed"]),
        "ends": st.sampled_from(["well"] * 6 + ["killed before", "killed after", "stopped"]),
        "lacks": st.sampled_from([0] * 5 + [1, 2, 4]),
        # Each record becomes so many rows; most of partition 1 is filtered out.
        "arrives": st.dictionaries(st.integers(0, 2), st.lists(st.integers(0, 2), max_size=6), max_size=3),
    }
)


@pytest.mark.parametrize("written", [True, False])
@settings(
    max_examples=int(os.environ.get("PGONCE_MODEL_EXAMPLES", "25")),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batches=st.lists(BATCHES, min_size=3, max_size=14))
def test_the_table_is_the_source_wherever_the_driver_is_killed(
    url, tmp_path_factory, started_receivers, written, batches
):
    """Whenever the driver died, and however old its checkpoint is: no row twice, none missing, all of them counted."""
    topic = Topic({0: [1, 1], 1: [0, 0]})
    job = Job(url, tmp_path_factory.mktemp("positions") / "checkpoint", topic, written=written)
    for step in batches:
        for partition, records in step["arrives"].items():
            # Partition 2 is added to the topic some time.
            kept = [rows * (partition != 1 or not rows % 2) for rows in records]
            topic.partitions.setdefault(partition, []).extend(kept)
        run_one(job, step, started_receivers)
        if step["lacks"]:
            job.query.roll_back(max(job.query.numbers("offsets"), default=-1) - step["lacks"])
            job.query.start()
        assert set(job.stored().values()) <= {1}
    finish(job)
    everything = {f"{p}-{offset}-{n}" for p, offset, n in topic.rows({}, topic.heads)}
    assert job.stored() == Counter(everything)
    assert job.recorded()[0] == len(everything)
    job.query.remove()


def run_one(job, step, started_receivers):
    """One batch of the run, or the run's end."""
    planned = job.query.plan(step["advance"])
    if planned is None:
        return
    job.query.write_entry(planned)
    if step["ends"] == "killed before":
        job.query.start()
        return
    job.commit(planned, ways=step["ways"], between=partial(kill, started_receivers, step["receiver"]))
    if step["ends"] == "killed after":
        job.query.start()
        return
    job.query.write_commit(planned)
    job.query.advance(planned)
    if step["ends"] == "stopped":
        job.query.start()


def kill(started_receivers, what):
    """The receiver may be killed once it has all rows."""
    if what == "is killed" and started_receivers:
        started_receivers[-1].kill()
        started_receivers[-1].wait()


def finish(job):
    """Run on until all is read."""
    for _ in range(20):
        planned = job.query.plan(dict.fromkeys(range(3), 1000))
        if planned is None:
            return
        job.query.write_entry(planned)
        job.commit(planned, ways=["inline", "received"])
        job.query.write_commit(planned)
        job.query.advance(planned)
    pytest.fail("the query does not come to an end")
