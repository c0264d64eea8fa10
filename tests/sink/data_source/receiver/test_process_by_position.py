"""
Rows that carry their positions, through a receiver: a batch that is run again loses what is stored, and nothing else.

Covers: sink.data_source.commit_parcels, sink.data_source.promise, sink.data_source.task_writer.
"""

from __future__ import annotations

import hashlib
import itertools
import resource
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema
from support.committed_rows import STRUCT, ids
from support.data_source_with_rooms import commit_parcels, receiver_for
from support.ledger_history import QUERY, RUN
from support.stopped_query import entry, write_checkpoint

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source import task_writer
from pgonce.sink.data_source.offer import offered
from pgonce.sink.data_source.task_writer import MicroBatch, TaskWriter
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.read_rows import AllRows

FRAME = t.StructType(
    [
        *STRUCT.fields,
        t.StructField("topic", t.StringType()),
        t.StructField("partition", t.IntegerType()),
        t.StructField("offset", t.LongType()),
    ]
)
AGAIN = "run 2"
# Where batches 0, 1, 1 again with another range, and 2 end.
BEFORE, ONCE, WIDER, NEXT = {"0": 10}, {"0": 15, "1": 4}, {"0": 20, "1": 9, "2": 5}, {"0": 22, "1": 10, "2": 6}
# By partition, offset and number: rows that Postgres cannot hold, of which the first batch has read two.
BAD = {(0, 12, 0), (0, 17, 0), (1, 2, 0), (1, 6, 0)}
ROWS_A_BATCH = 4
# The receiver has room for the first rows of the first task.
FULL = 2000


def id_of(row):
    """The id of a row by which the target knows it."""
    partition, offset, number = row
    return partition * 1000 + number * 500 + (offset or 0)


def rows_of_tasks(start, end):
    """The rows of three tasks; what an earlier batch has read stands at the start, in the middle, and everywhere."""
    one, two, three = ([(p, at, 0) for at in range(start.get(str(p), 0), end.get(str(p), 0))] for p in range(3))
    return one, [*three[:3], *two, *three[3:]], [(p, at, 1) for p, at, _ in two]


def batches_of(rows):
    """These rows, as Spark gives them to a task."""
    values = [
        {
            "id": id_of(row),
            "name": "bad \0" if row in BAD else "good",
            "topic": "t",
            "partition": row[0],
            "offset": row[1],
        }
        for row in rows
    ]
    for first in range(0, len(values), ROWS_A_BATCH):
        yield pa.RecordBatch.from_pylist(values[first : first + ROWS_A_BATCH], schema=to_arrow_schema(FRAME))


class Query:
    """A query whose rows carry their positions, with the real tasks, receiver and commit."""

    def __init__(self, options, folder, monkeypatch):
        self.options, self._folder, self._monkeypatch = options, folder, monkeypatch
        self._attempt_ids = itertools.count()

    def plan(self, batch_id, end, run_id=RUN):
        """As the planner's worker does, after Spark has written this entry."""
        text = entry(batch_id, {"t": end}, planned=0 if run_id == RUN else 5)
        write_checkpoint(self._folder, {batch_id: text})
        planned = OffsetLogEntry(batch_id, hashlib.sha256(text.encode()).hexdigest())
        self._batch = batch_id, run_id, MicroBatch(planned)
        # Without the positions, which are not written.
        self.receiver = receiver_for(self.options, STRUCT)

    def task(self, way, partition_id, rows):
        """What an attempt of the task that has these rows tells the commit."""
        batch_id, run_id, batch = self._batch
        told = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": str(batch_id), "spark.jobGroup.id": run_id}
        attempt_id = next(self._attempt_ids)
        context = SimpleNamespace(
            getLocalProperty=told.get, partitionId=lambda: partition_id, taskAttemptId=lambda: attempt_id
        )
        self._monkeypatch.setattr(task_writer, "TaskContext", SimpleNamespace(get=lambda: context))
        options = replace(self.options, inline_bytes=100_000 if way == "inline" else 0)
        receiver = None if way == "staged" else self.receiver
        return TaskWriter(options, AllRows(FRAME), batch, offered(receiver)).write(batches_of(rows))

    def tasks(self, ways, start, end):
        """What the tasks of a batch tell the commit; each has also run to its end in an attempt that nobody chose."""
        given = list(enumerate(zip(ways, rows_of_tasks(start, end), strict=True)))
        for number, (way, rows) in given:
            self.task(way, number, rows)
        return [self.task(way, number, rows) for number, (way, rows) in given]

    def commit(self, parcels):
        """What becomes of the batch."""
        return commit_parcels(self.options, encoded_columns(STRUCT), parcels, self._batch[0])


@pytest.fixture
def query(target, receiver_options, tmp_path, monkeypatch, proxy):
    """A query that has published batch 0, and reaches Postgres through the proxy."""
    options = receiver_options(
        url=proxy.url,
        positionColumns="topic,partition,offset",
        writePositions="false",
        deadLetters="true",
        checkpointLocation=str(write_checkpoint(tmp_path / "its checkpoint", {0: entry(0)}, [0])),
    )
    return Query(options, tmp_path / "its checkpoint", monkeypatch)


@pytest.fixture
def published_once(query):
    """The query, whose batch 1 was published, and is now planned again over a wider range, by another run."""
    query.plan(1, ONCE)
    assert query.commit(query.tasks(("received",) * 3, BEFORE, ONCE)) is Verdict.NEW
    query.plan(1, WIDER, AGAIN)
    return query


def is_whole(target, end):
    """Whether each row of all partitions up to there is in the table once, and each bad one among the dead letters."""
    rows = {row for of_task in rows_of_tasks(BEFORE, end) for row in of_task}
    letters = target.execute("SELECT (row_data ->> 'id')::int FROM pgonce.dead_letters ORDER BY 1").fetchall()
    assert [one for (one,) in letters] == sorted(map(id_of, BAD & rows))
    assert ids(target) == sorted(map(id_of, rows - BAD))


def newest(target):
    """The newest record: rows, rows that were stored already, and how all came."""
    return target.execute(
        "SELECT rows, dropped_rows, transport FROM pgonce.batches ORDER BY generation DESC, batch_id DESC LIMIT 1"
    ).fetchone()


ONE_WAY = ("received",) * 3
IN_PART = ("received, as far as there is room",)
EACH_WAY = (("inline", "received", "staged"), ("staged", "inline", "received"), ("received", "staged", "inline"))


def fill(process):
    """Leave the receiver room for the first rows of the first task."""
    if not hasattr(resource, "prlimit"):
        pytest.skip("limits of another process are set on Linux only")
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (FULL, FULL))


def goes_on(query, target):
    """The next batch of the run is no overlap: the ledger knows where each partition ends."""
    query.plan(2, NEXT, AGAIN)
    assert query.commit(query.tasks(ONE_WAY, WIDER, NEXT)) is Verdict.NEW
    is_whole(target, NEXT)
    assert newest(target)[1] == 0


@pytest.mark.parametrize("fault", ["none", "killed"])
@pytest.mark.parametrize("ways", [ONE_WAY, *EACH_WAY, IN_PART], ids="+".join)
def test_rows_that_are_stored_are_left_out_whichever_way_they_come(
    fault, ways, published_once, target, started_receivers
):
    """By the receiver, and by the commit worker that reads what a killed one has kept."""
    if ways is IN_PART:
        published_once.receiver.dial().close()
        fill(started_receivers[-1])
    parcels = published_once.tasks(ONE_WAY if ways is IN_PART else ways, BEFORE, WIDER)
    if ways is IN_PART:
        # The first attempt, which nobody has chosen, has taken what room there was.
        assert {parcel.ways for parcel in parcels} == {("staged",)}
        published_once.plan(1, WIDER, AGAIN)
        parcels = [published_once.task("received", *one) for one in enumerate(rows_of_tasks(BEFORE, WIDER))]
        assert parcels[0].ways == ("received", "staged")
        assert parcels[0].received[1] < parcels[0].rows
    assert published_once.receiver.has_kept_rows()
    if fault == "killed":
        started_receivers[-1].kill()
        started_receivers[-1].wait()
    assert published_once.commit(parcels) is Verdict.OVERLAP
    is_whole(target, WIDER)
    transport = "received+staged" if ways is IN_PART else "+".join(sorted(set(ways)))
    assert newest(target) == (18, 11, transport)
    goes_on(published_once, target)


@pytest.mark.parametrize("moment", ["hold_in_copy", "hold_before_commit", "hold_after_commit"])
@pytest.mark.parametrize("ways", [ONE_WAY, EACH_WAY[0]], ids="+".join)
def test_a_receiver_that_is_killed_while_it_leaves_rows_out(
    moment, ways, published_once, target, proxy, started_receivers
):
    """What it has not committed is committed from its file, without the same rows; what it has is found landed."""
    parcels = published_once.tasks(ways, BEFORE, WIDER)
    hold = getattr(proxy, moment)(touching="events")
    with ThreadPoolExecutor() as pool:
        committing = pool.submit(published_once.commit, parcels)
        hold.wait()
        started_receivers[-1].kill()
        started_receivers[-1].wait()
        hold.cut()
        assert committing.result() is (Verdict.LANDED if moment == "hold_after_commit" else Verdict.OVERLAP)
    is_whole(target, WIDER)
    assert newest(target)[:2] == (18, 11)
    goes_on(published_once, target)


@pytest.mark.parametrize("fault", ["none", "killed"])
def test_positions_of_elsewhere_are_refused(fault, query, target, started_receivers):
    """By the receiver as by every commit: rows before or past the range of their batch, or of another partition."""
    for stray in [(0, 15, 0), (7, 0, 0), (0, 9, 0)]:
        query.plan(1, ONCE)
        parcels = [query.task("received", *one) for one in enumerate(rows_of_tasks(BEFORE, ONCE))]
        parcels.append(query.task("received", 3, [(0, 11, 0), stray]))
        if fault == "killed":
            started_receivers[-1].kill()
            started_receivers[-1].wait()
        with pytest.raises(PgonceError, match="POSITION_COLUMNS"):
            query.commit(parcels)
        assert (ids(target), newest(target)[0]) == ([], 10)


def test_a_row_without_a_position_is_refused(query):
    """By its task, whichever rows it has sent before."""
    query.plan(1, ONCE)
    with pytest.raises(PgonceError, match="POSITION_COLUMNS"):
        query.task("received", 0, [*((0, at, 0) for at in range(10, 15)), (0, None, 0)])
