"""
Which writers feed a table, whatever their sinks are called?

Runs in the commit of a batch that starts over, and in `pgonce swap`, in a transaction that has locked the table or is
about to. Invariant: a living writer feeds a table if its sink has the table's name, or if its last batch went into it,
into a partition of it, or into a table that it is a partition of. All that are found are locked.
"""

from __future__ import annotations

from typing import NamedTuple

import psycopg
from psycopg import sql

from ..postgres import search_path


class Feeder(NamedTuple):
    """A writer that has published into a table, and may publish more."""

    writer_id: int
    query_id: str
    query_name: str | None
    sink_name: str


def feeders_in_tx(
    connection: psycopg.Connection,
    oid: int,
    qualified_name: str,
    *,
    lock: bool = True,
    or_gone: tuple[str, str] | None = None,
) -> list[Feeder]:
    """
    The living writers of a table, in the order of their keys.

    The same search_path is in force before and afterwards.

    :param lock: whether to lock their rows, as a commit locks its own.
    :param or_gone: the query's id and the sink of a writer that is found even if it is no longer living.
    """
    query, sink = or_gone or (None, None)
    statement = sql.SQL(_FEEDERS + (" FOR UPDATE OF w" if lock else "")).format(
        oid=sql.Literal(oid), name=sql.Literal(qualified_name), query=sql.Literal(query), sink=sql.Literal(sink)
    )
    cursor = connection.cursor()
    search_path.execute_in_tx(cursor, statement)
    return [Feeder(*row) for row in cursor.fetchall()]


_FEEDERS = """
SELECT w.writer_id, w.query_id, w.query_name, w.sink_name
FROM pgonce.writers AS w
WHERE w.last_batch_id IS NOT NULL
  AND (w.replaced_by IS NULL AND w.retired_at IS NULL OR w.query_id = {query} AND w.sink_name = {sink})
  AND (w.sink_name = {name} OR w.targets ? {name} OR EXISTS (
      SELECT FROM jsonb_each_text(w.targets) AS t
      WHERE t.value::bigint = {oid}
         OR t.value::bigint IN (SELECT p.relid::oid::bigint FROM pg_partition_tree({oid}) AS p)
         OR t.value::bigint IN (SELECT p.relid::oid::bigint FROM pg_partition_ancestors({oid}) AS p)))
ORDER BY w.writer_id
"""
