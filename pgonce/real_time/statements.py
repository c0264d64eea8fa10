"""
Compose what tasks send: claim a partition, write rows together with its position, and look why that was refused.

Pure: runs on the driver; the writer in Java fills in the values, in the order of the question marks. Invariant: rows
are inserted only by the statement that moves the position, and only if it moves. All names are qualified and all
operators are Postgres's own, because the user's search_path is in force, as for the triggers of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from psycopg import sql

from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.writing.checked_table import ColumnPlan
from pgonce.sink.writing.table.catalogue import TargetTable
from pgonce.sink.writing.write_table import append_statement

# A claim needs the writer's row, so that it is before or after whatever takes the writer over, and sees that.
# A task of a later stage takes over, and so does a later attempt; two tasks of one batch that have rows of one
# partition do not. (A continuous query plans its tasks again, in a new stage, when the topic gets more partitions.)
# If the position is below where an earlier task left it, the database has lost what it had answered. A continuous query
# that is planned again knows how far that is only where it knows the claim before; elsewhere, no record may be missing
# between the position and its first row.
CLAIM = """
WITH given (writer_id, run_id, topic, partition, next_offset, claim, stage, epoch, spark_partition, task_attempt, floor,
    before)
AS (
    VALUES (CAST(? AS pg_catalog.int8), CAST(? AS pg_catalog.text), CAST(? AS pg_catalog.text),
            CAST(? AS pg_catalog.int4), CAST(? AS pg_catalog.int8), CAST(? AS pg_catalog.uuid),
            CAST(? AS pg_catalog.int4), CAST(? AS pg_catalog.int8), CAST(? AS pg_catalog.int8),
            CAST(? AS pg_catalog.int8), CAST(? AS pg_catalog.int8), CAST(? AS pg_catalog.uuid))
), owner AS (
    SELECT w.writer_id FROM pgonce.writers AS w, given AS g
    WHERE w.writer_id OPERATOR(pg_catalog.=) g.writer_id AND w.run_id OPERATOR(pg_catalog.=) g.run_id
        AND w.retired_at IS NULL AND w.replaced_by IS NULL
    FOR SHARE OF w
), stored AS (
    SELECT p.next_offset FROM pgonce.positions AS p, given AS g
    WHERE p.writer_id OPERATOR(pg_catalog.=) g.writer_id AND p.topic OPERATOR(pg_catalog.=) g.topic
        AND p.partition OPERATOR(pg_catalog.=) g.partition
)
INSERT INTO pgonce.positions AS p
    (writer_id, run_id, topic, partition, next_offset, claim, stage, epoch, spark_partition, task_attempt, claimed_from)
SELECT g.writer_id, g.run_id, g.topic, g.partition, g.next_offset, g.claim, g.stage, g.epoch, g.spark_partition,
    g.task_attempt, g.next_offset
FROM given AS g JOIN owner ON owner.writer_id OPERATOR(pg_catalog.=) g.writer_id
WHERE (g.floor IS NULL OR EXISTS (SELECT FROM stored AS s WHERE s.next_offset OPERATOR(pg_catalog.>=) g.floor))
    AND (g.before IS NULL OR g.next_offset OPERATOR(pg_catalog.=) 0 OR EXISTS (SELECT FROM stored))
ON CONFLICT (writer_id, topic, partition) DO UPDATE
SET claim = excluded.claim, stage = excluded.stage, epoch = excluded.epoch, spark_partition = excluded.spark_partition,
    task_attempt = excluded.task_attempt,
    claimed_from = CASE WHEN p.stage OPERATOR(pg_catalog.=) excluded.stage
        AND p.epoch OPERATOR(pg_catalog.=) excluded.epoch THEN p.claimed_from ELSE p.next_offset END
WHERE p.run_id OPERATOR(pg_catalog.=) excluded.run_id AND p.disputed_from IS NULL
    AND (p.claim OPERATOR(pg_catalog.=) excluded.claim OR (
        (p.next_offset OPERATOR(pg_catalog.>=) excluded.next_offset
            OR (SELECT g.before IS NULL OR g.before OPERATOR(pg_catalog.=) p.claim FROM given AS g))
        AND (p.stage IS NULL OR p.stage OPERATOR(pg_catalog.<) excluded.stage
            OR (p.stage OPERATOR(pg_catalog.=) excluded.stage
                AND (p.epoch OPERATOR(pg_catalog.<) excluded.epoch
                    OR (p.epoch OPERATOR(pg_catalog.=) excluded.epoch
                        AND p.spark_partition OPERATOR(pg_catalog.=) excluded.spark_partition
                        AND p.task_attempt OPERATOR(pg_catalog.<) excluded.task_attempt))))))
RETURNING p.next_offset
"""

# Whether the run is the owner still, whether the claim is this task's, the position, and who has claimed it when.
LOOK = """
SELECT w.run_id OPERATOR(pg_catalog.=) g.run_id AND w.retired_at IS NULL AND w.replaced_by IS NULL,
    coalesce(p.claim OPERATOR(pg_catalog.=) g.claim, false), coalesce(p.next_offset, 0), coalesce(p.epoch, -1),
    coalesce(p.spark_partition, -1), coalesce(p.stage, -1)
FROM (VALUES (CAST(? AS pg_catalog.uuid), CAST(? AS pg_catalog.text), CAST(? AS pg_catalog.text),
              CAST(? AS pg_catalog.int4), CAST(? AS pg_catalog.int8))) AS g (claim, run_id, topic, partition, writer_id)
JOIN pgonce.writers AS w ON w.writer_id OPERATOR(pg_catalog.=) g.writer_id
LEFT JOIN pgonce.positions AS p ON p.writer_id OPERATOR(pg_catalog.=) g.writer_id
    AND p.topic OPERATOR(pg_catalog.=) g.topic AND p.partition OPERATOR(pg_catalog.=) g.partition
"""

# Rows of a partition came from two tasks of one batch, or out of order: some below the position may be missing. Only a
# person can tell, so no run begins until one has looked.
DISPUTE = """
UPDATE pgonce.positions AS p
SET disputed_from = least(coalesce(p.claimed_from, p.next_offset), CAST(? AS pg_catalog.int8)), claim = NULL
WHERE p.writer_id OPERATOR(pg_catalog.=) CAST(? AS pg_catalog.int8)
    AND p.run_id OPERATOR(pg_catalog.=) CAST(? AS pg_catalog.text)
    AND p.topic OPERATOR(pg_catalog.=) CAST(? AS pg_catalog.text)
    AND p.partition OPERATOR(pg_catalog.=) CAST(? AS pg_catalog.int4) AND p.disputed_from IS NULL
"""

# The driver may have moved the position past records that were filtered, but never past the first of these rows. The
# table may have been exchanged for another one of the same name. It may have been made unlogged: then a crash would
# empty it, and leave the position. It may have got a rule, which puts rows elsewhere. Or a column has another type, or
# has given its name to another one: then values that were compared with the type that it had would be rounded or cut.
_MOVED = """
UPDATE pgonce.positions AS p
SET next_offset = CAST(? AS pg_catalog.int8), rows = p.rows OPERATOR(pg_catalog.+) CAST(? AS pg_catalog.int4),
    moved_at = pg_catalog.clock_timestamp()
WHERE p.writer_id OPERATOR(pg_catalog.=) CAST(? AS pg_catalog.int8)
    AND p.topic OPERATOR(pg_catalog.=) CAST(? AS pg_catalog.text)
    AND p.partition OPERATOR(pg_catalog.=) CAST(? AS pg_catalog.int4)
    AND p.claim OPERATOR(pg_catalog.=) CAST(? AS pg_catalog.uuid)
    AND p.next_offset OPERATOR(pg_catalog.>=) CAST(? AS pg_catalog.int8)
    AND p.next_offset OPERATOR(pg_catalog.<=) CAST(? AS pg_catalog.int8)
    AND pg_catalog.to_regclass({name}) OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid
    AND EXISTS (SELECT FROM pg_catalog.pg_class AS c WHERE c.oid OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid
        AND c.relpersistence OPERATOR(pg_catalog.=) 'p')
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_rewrite AS r
        WHERE r.ev_class OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid)
    AND (SELECT pg_catalog.count(*) FROM ROWS FROM (pg_catalog.unnest({numbers}), pg_catalog.unnest({names}),
            pg_catalog.unnest({types}), pg_catalog.unnest({modifiers})) AS t (number, name, type, modifier)
        JOIN pg_catalog.pg_attribute AS a ON a.attrelid OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid
        AND a.attnum OPERATOR(pg_catalog.=) t.number AND a.attname OPERATOR(pg_catalog.=) t.name
        AND a.atttypid OPERATOR(pg_catalog.=) t.type AND a.atttypmod OPERATOR(pg_catalog.=) t.modifier
    ) OPERATOR(pg_catalog.=) {columns}{partitions}
RETURNING p.next_offset
"""

# None of its partitions is unlogged or foreign. Only where there are any, because it adds 0.1 ms to a flush.
_PARTITIONS = """
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_partition_tree({oid}::pg_catalog.oid) AS t JOIN pg_catalog.pg_class AS c
        ON c.oid OPERATOR(pg_catalog.=) t.relid WHERE c.relpersistence OPERATOR(pg_catalog.<>) 'p'
        OR c.relkind OPERATOR(pg_catalog.=) 'f')"""


def flush_statement(table: TargetTable, columns: Sequence[EncodedColumn], plan: Sequence[ColumnPlan]) -> sql.Composed:
    """
    Write rows, given as one array a column, and move the position past them; no row if the position may not be moved.

    After the arrays come the new position, how many rows these are, the writer, topic, partition and claim, the
    position as the task knows it, and the offset of the first row.
    """
    array = sql.SQL("pg_catalog.unnest(CAST(? AS pg_catalog.{}[]))")
    arrays = sql.SQL(", ").join(array.format(sql.SQL(column.postgres_type)) for column in columns)
    source = sql.Identifier("pgonce rows")
    oid = sql.Literal(table.oid)
    written = {column.target for column in plan}
    declared = [(column.column_name, column.declared) for column in table.columns if column.declared]
    names = [name for name, _ in declared if name in written]
    numbers, types, modifiers = zip(*(found for name, found in declared if name in written), strict=True)
    moved = sql.SQL(_MOVED).format(
        name=sql.Literal(table.identifier.as_string(None)),
        oid=oid,
        numbers=_constant("int2", numbers),
        names=sql.SQL("CAST(ARRAY[{}] AS pg_catalog.name[])").format(sql.SQL(", ").join(map(sql.Literal, names))),
        types=_constant("oid", types),
        modifiers=_constant("int4", modifiers),
        columns=sql.Literal(len(written)),
        partitions=sql.SQL(_PARTITIONS).format(oid=oid) if table.kind == "p" else sql.SQL(""),
    )
    return sql.SQL(
        "WITH {source} ({names}) AS (SELECT * FROM ROWS FROM ({arrays})), moved AS ({moved}), written AS ({insert}) "
        "SELECT next_offset FROM moved"
    ).format(
        source=source,
        names=sql.SQL(", ").join(sql.Identifier(column.name) for column in columns),
        arrays=arrays,
        moved=moved,
        insert=append_statement(source, sql.SQL("EXISTS (SELECT FROM moved)"), table, plan),
    )


def _constant(kind: str, numbers: Iterable[int]) -> sql.Composed:
    text = "{" + ",".join(map(str, numbers)) + "}"
    return sql.SQL("CAST({} AS pg_catalog.{}[])").format(sql.Literal(text), sql.SQL(kind))
