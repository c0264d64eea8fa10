"""
Read and set where the tasks of a real-time or continuous query stand.

Runs on the driver, in the transactions that begin a run and record its batches. (Tasks move the rows themselves, by the
statements of :mod:`pgonce.sink.real_time.statements`.) Invariant: a run's positions are set under the lock on its
writer's row, and no task of an older run can move them afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import psycopg

from ..errors import NOTHING, RefusedBatch
from ..offsets import Offsets, furthest, kafka_positions

TopicPartition = tuple[str, int]
SOURCE = "0"
"""Such a query has one source, which is Spark's first."""


@dataclass(frozen=True)
class RunPositions:
    """The writer's key, where each partition stands, and how many rows were written since the mode was entered."""

    writer_id: int
    positions: Offsets
    rows: int


_STORED = b"""
SELECT w.writer_id, coalesce(l.positions, w.end_offsets), pgonce.real_time_positions(w.writer_id)
FROM pgonce.writers AS w
LEFT JOIN pgonce.batches AS l ON l.writer_id OPERATOR(pg_catalog.=) w.writer_id
    AND l.generation OPERATOR(pg_catalog.=) w.generation AND l.batch_id OPERATOR(pg_catalog.=) w.last_batch_id
WHERE w.query_id OPERATOR(pg_catalog.=) %s AND w.sink_name OPERATOR(pg_catalog.=) %s
"""
_BEGIN = b"""
INSERT INTO pgonce.positions AS p (writer_id, topic, partition, next_offset, run_id)
SELECT %s, t.topic, t.partition, t.next_offset, %s
FROM ROWS FROM (pg_catalog.unnest(CAST(%s AS pg_catalog.text[])), pg_catalog.unnest(CAST(%s AS pg_catalog.int4[])),
    pg_catalog.unnest(CAST(%s AS pg_catalog.int8[]))) AS t (topic, partition, next_offset)
ON CONFLICT (writer_id, topic, partition) DO UPDATE
SET next_offset = greatest(p.next_offset, excluded.next_offset), run_id = excluded.run_id, claim = NULL,
    epoch = NULL, spark_partition = NULL, task_attempt = NULL, claimed_from = NULL
RETURNING p.topic, p.partition, p.disputed_from, p.next_offset
"""
# Only from where the tasks have left it: a position that is not there shows that the database has gone back.
_ADVANCE = b"""
UPDATE pgonce.positions AS p SET next_offset = t.upto
FROM ROWS FROM (pg_catalog.unnest(CAST(%s AS pg_catalog.text[])), pg_catalog.unnest(CAST(%s AS pg_catalog.int4[])),
    pg_catalog.unnest(CAST(%s AS pg_catalog.int8[])), pg_catalog.unnest(CAST(%s AS pg_catalog.int8[])))
    AS t (topic, partition, known, upto)
WHERE p.writer_id OPERATOR(pg_catalog.=) %s AND p.topic OPERATOR(pg_catalog.=) t.topic
    AND p.partition OPERATOR(pg_catalog.=) t.partition AND p.next_offset OPERATOR(pg_catalog.=) t.known
    AND p.next_offset OPERATOR(pg_catalog.<) t.upto
"""
_NOW = b"""
SELECT pgonce.real_time_positions(%(writer)s),
    (SELECT coalesce(pg_catalog.sum(p.rows), 0)::pg_catalog.int8 FROM pgonce.positions AS p
     WHERE p.writer_id OPERATOR(pg_catalog.=) %(writer)s)
"""


def begin_in_tx(
    connection: psycopg.Connection, query_id: str, sink_name: str, run_id: str, *known: Offsets | None
) -> RunPositions:
    """
    Give each partition to this run, at the furthest of what is stored and of ``known``; no task has claimed it.

    The transaction has the lock on the writer's row, and makes this run the owner.
    """
    row = connection.execute(_STORED, [query_id, sink_name]).fetchone()
    if row is None:
        raise RuntimeError("the writer's row is not locked")
    writer_id, stored, of_tasks = row
    places = list(kafka_positions(furthest(stored, of_tasks, *known)))
    topics, partitions, offsets = ([place[n] for place in places] for n in (1, 2, 3))
    for topic, partition, disputed_from, at in connection.execute(
        _BEGIN, [writer_id, run_id, topics, partitions, offsets]
    ):
        if disputed_from is not None:
            raise _disputed(topic, partition, disputed_from, at)
    return _now(connection, writer_id)


def advance_in_tx(
    connection: psycopg.Connection, writer_id: int, known: Mapping[TopicPartition, int], ends: Offsets
) -> RunPositions:
    """
    Move each partition to where the query's last batch has ended: records up to there were written or filtered.

    :param known: where the tasks have left each partition; others are not moved.
    """
    places = [(t, p, known[t, p], end) for _, t, p, end in kafka_positions(ends) if (t, p) in known]
    topics, partitions, left, upto = ([place[n] for place in places] for n in range(4))
    connection.execute(_ADVANCE, [topics, partitions, left, upto, writer_id])
    return _now(connection, writer_id)


def _disputed(topic: str, partition: int, disputed_from: int, at: int) -> RefusedBatch:
    return RefusedBatch(
        "PARTITION_MIXED",
        f"In an earlier run, two tasks of one batch had rows of partition {partition} of topic {topic}: of records "
        f"{disputed_from} to {at - 1}, some may be missing in the table.",
        NOTHING,
        "Compare these records with the table, repair it by hand, and run UPDATE pgonce.positions SET disputed_from = "
        f"NULL WHERE topic = '{topic}' AND partition = {partition}. Then start the query again, without the step that "
        "moves rows between tasks.",
    )


def _now(connection: psycopg.Connection, writer_id: int) -> RunPositions:
    row = connection.execute(_NOW, {"writer": writer_id}).fetchone()
    positions, rows = row or (None, 0)
    return RunPositions(writer_id, positions or {}, rows)
