"""
Read and set where the tasks of a real-time or continuous query stand.

Runs on the driver, in the transactions that begin a run and record its batches. (Tasks move the rows themselves, by the
statements of :mod:`~pgonce.real_time.statements`.) Invariant: a run's positions are set under the lock on its
writer's row, and no task of an older run can move them afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from pgonce.offsets_store.errors import RefusedBatch
from pgonce.offsets_store.offsets import Offsets, TopicPartition, by_partition, furthest, kafka_positions

SOURCE = "0"
"""Such a query has one source, which is Spark's first."""


@dataclass(frozen=True)
class RunPositions:
    """The writer's key, where each partition stands, and how many rows were written since the mode was entered."""

    writer_id: int
    positions: Offsets
    rows: int


_STORED = """
SELECT w.writer_id, coalesce(l.positions, w.end_offsets), pgonce.real_time_positions(w.writer_id)
FROM pgonce.writers AS w
LEFT JOIN pgonce.batches AS l ON l.writer_id OPERATOR(pg_catalog.=) w.writer_id
    AND l.generation OPERATOR(pg_catalog.=) w.generation AND l.batch_id OPERATOR(pg_catalog.=) w.last_batch_id
WHERE w.query_id OPERATOR(pg_catalog.=) %s AND w.sink_name OPERATOR(pg_catalog.=) %s
"""
_BEGIN = """
INSERT INTO pgonce.positions AS p (writer_id, topic, partition, next_offset, run_id)
SELECT %s, t.topic, t.partition, t.next_offset, %s
FROM ROWS FROM (pg_catalog.unnest(CAST(%s AS pg_catalog.text[])), pg_catalog.unnest(CAST(%s AS pg_catalog.int4[])),
    pg_catalog.unnest(CAST(%s AS pg_catalog.int8[]))) AS t (topic, partition, next_offset)
ON CONFLICT (writer_id, topic, partition) DO UPDATE
SET next_offset = excluded.next_offset, run_id = excluded.run_id, claim = NULL,
    stage = NULL, epoch = NULL, spark_partition = NULL, task_attempt = NULL, claimed_from = NULL
"""
# Only from where the tasks have left it: a position that is not there shows that the database has gone back.
_ADVANCE = """
UPDATE pgonce.positions AS p SET next_offset = t.upto
FROM ROWS FROM (pg_catalog.unnest(CAST(%s AS pg_catalog.text[])), pg_catalog.unnest(CAST(%s AS pg_catalog.int4[])),
    pg_catalog.unnest(CAST(%s AS pg_catalog.int8[])), pg_catalog.unnest(CAST(%s AS pg_catalog.int8[])))
    AS t (topic, partition, known, upto)
WHERE p.writer_id OPERATOR(pg_catalog.=) %s AND p.topic OPERATOR(pg_catalog.=) t.topic
    AND p.partition OPERATOR(pg_catalog.=) t.partition AND p.next_offset OPERATOR(pg_catalog.=) t.known
    AND p.next_offset OPERATOR(pg_catalog.<) t.upto AND p.run_id OPERATOR(pg_catalog.=) %s
"""
# A partition that was added, and of which all records were filtered so far, so that no task has claimed it. If one has
# meanwhile, its row stays as it is.
_ADD = """
INSERT INTO pgonce.positions (writer_id, topic, partition, next_offset, run_id)
SELECT w.writer_id, t.topic, t.partition, t.next_offset, w.run_id
FROM pgonce.writers AS w CROSS JOIN ROWS FROM (pg_catalog.unnest(CAST(%s AS pg_catalog.text[])),
    pg_catalog.unnest(CAST(%s AS pg_catalog.int4[])), pg_catalog.unnest(CAST(%s AS pg_catalog.int8[])))
    AS t (topic, partition, next_offset)
WHERE w.writer_id OPERATOR(pg_catalog.=) %s AND w.run_id OPERATOR(pg_catalog.=) %s
    AND w.retired_at IS NULL AND w.replaced_by IS NULL
FOR SHARE OF w
ON CONFLICT (writer_id, topic, partition) DO NOTHING
"""
_NOW = """
SELECT pgonce.real_time_positions(%(writer)s::pg_catalog.int8),
    (SELECT coalesce(pg_catalog.sum(p.rows), 0)::pg_catalog.int8 FROM pgonce.positions AS p
     WHERE p.writer_id OPERATOR(pg_catalog.=) %(writer)s)
"""


def begin_in_tx(
    connection: psycopg.Connection, query_id: str, sink_name: str, run_id: str, *known: Offsets | None
) -> RunPositions:
    """
    Give each partition to this run, at the furthest of what is stored and of ``known``; no task has claimed it.

    The transaction has the lock on the writer's row, for which no partition is disputed, and makes this run the owner.
    """
    row = connection.execute(_STORED, [query_id, sink_name]).fetchone()
    if row is None:
        raise RuntimeError("the writer's row is not locked")
    writer_id, stored, of_tasks = row
    places = list(kafka_positions(furthest(stored, of_tasks, *known)))
    topics, partitions, offsets = ([place[n] for place in places] for n in (1, 2, 3))
    connection.execute(_BEGIN, [writer_id, run_id, topics, partitions, offsets])
    return positions_of(connection, writer_id)


def advance(
    connection: psycopg.Connection,
    run_id: str,
    before: RunPositions,
    known: Mapping[TopicPartition, int],
    ends: Offsets,
) -> RunPositions:
    """
    Move each partition to where the query's last batch has ended: records up to there were written or filtered.

    :param before: what this was called with, or returned, the last time.
    :param known: where the tasks have left each partition, as far as they have said so. Others are not moved; one that
        has no position yet gets one, because no task has had rows of it.
    :raises RefusedBatch: POSITION_WENT_BACK, if the database has lost what it had before.
    """
    now = positions_of(connection, before.writer_id)
    least = by_partition(before.positions)
    for place, at in known.items():
        least[place] = max(at, least.get(place, 0))
    refuse_less(now.positions, least)
    if now.rows < before.rows:
        # Other tasks have moved the positions since, past rows that are missing.
        raise _went_back(
            f"{now.rows} rows are recorded with the stored positions, but {before.rows} were before",
            "Compare the table with the topic before the query is started again: records may be missing below the "
            "positions.",
        )
    reached, there = by_partition(ends), by_partition(now.positions)
    places = [(*place, known[place], end) for place, end in reached.items() if place in known]
    connection.execute(_ADVANCE, [*_by_column(places, 4), before.writer_id, run_id])
    if added := [(*place, end) for place, end in reached.items() if place not in known and place not in there]:
        connection.execute(_ADD, [*_by_column(added, 3), before.writer_id, run_id])
    return positions_of(connection, before.writer_id)


def _by_column(rows: Sequence[tuple[Any, ...]], width: int) -> list[list[Any]]:
    """The rows as Postgres's unnest takes them: a list for each of their columns."""
    return [[row[number] for row in rows] for number in range(width)]


def refuse_less(stored: Offsets, least: Mapping[TopicPartition, int]) -> None:
    """:raises RefusedBatch: POSITION_WENT_BACK, if a partition is stored less far than it was before."""
    there = by_partition(stored)
    for (topic, partition), at in sorted(least.items()):
        now = there.get((topic, partition), 0)
        if now < at:
            raise _went_back(
                f"The stored position of partition {partition} of topic {topic} is {now}, but it was {at} before",
                "Start the query again: it goes on at the stored positions.",
            )


def _went_back(what: str, remedy: str) -> RefusedBatch:
    lost = "the database has lost what was committed since, as after a restore or a failover."
    return RefusedBatch.usual("POSITION_WENT_BACK", f"{what}: {lost}", remedy)


def positions_of(connection: psycopg.Connection, writer_id: int) -> RunPositions:
    """Where the partitions of a writer stand now."""
    row = connection.execute(_NOW, {"writer": writer_id}).fetchone()
    positions, rows = row or (None, 0)
    return RunPositions(writer_id, positions or {}, rows)
