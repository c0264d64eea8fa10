"""
Say who feeds a table, and whether a batch job is published, with psycopg alone.

Runs in the planner's worker, which has no need of SQLAlchemy, and in the commit, under the user's search_path.
Invariant: what feeding a table means is said here and nowhere else.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from ..verdict.facts import Batch

_WRITERS = sql.SQL("pgonce.writers")
# A writer, or a batch job, feeds a table if its sink has the table's name, or if it writes into the table, a partition
# of it, or a table that it is a partition of. A table that was renamed is found by its oid, one that was created again
# by its name. Not by pg_partition_tree, which locks all partitions until the transaction ends: this is asked while the
# commit may end the session that it waits for, and that one may be another query's.
FEEDS = """(
    {feeder}.sink_name = ANY (CAST({names} AS text[]))
    OR {feeder}.targets ?| CAST({names} AS text[])
    OR EXISTS (
        SELECT FROM jsonb_each_text({feeder}.targets) AS written, unnest(CAST({oids} AS bigint[])) AS asked(oid)
        WHERE CAST(written.value AS bigint) = asked.oid
           OR CAST(asked.oid AS oid) IN (
               SELECT relid FROM pg_partition_ancestors(CAST(CAST(CAST(written.value AS bigint) AS oid) AS regclass)))
           OR CAST(CAST(written.value AS bigint) AS oid) IN (
               SELECT relid FROM pg_partition_ancestors(CAST(CAST(asked.oid AS oid) AS regclass))))
)"""

# Each batch of the writer replaces all rows of one of these tables. A route may do so with one of its tables only.
REPLACES_ROWS = f"""EXISTS (
    SELECT FROM (SELECT t.name AS sink_name, jsonb_build_object(t.name, t.how -> 'oid') AS targets
                 FROM jsonb_each({{feeder}}.written_as -> 'tables') AS t (name, how)
                 WHERE t.how -> 'options' ->> 'mode' = 'complete') AS replaced
    WHERE {FEEDS.format(feeder="replaced", names="{names}", oids="{oids}")}
)"""


def is_published(connection: psycopg.Connection, sink_name: str, batch_key: str, *, is_of_table: bool) -> bool:
    """
    Whether a batch job with this key was published into the sink, or into its table under an earlier name of that.

    Without a lock, so it proves nothing for the commit. Our search_path must be in force.

    :param is_of_table: whether the sink has its table's name, and not one that the user gave it.
    """
    named_after = sink_name if is_of_table else None
    statement = sql.SQL(_IS_PUBLISHED).format(key=batch_key, sink=sink_name, named_after=named_after)
    ((is_there,),) = connection.execute(statement)
    return bool(is_there)


# A sink that is named after its table keeps its keys when the table is renamed. A name that the user gave the sink may
# be any text, which to_regclass does not take; then ``named_after`` is NULL. The oid is looked up in the statement
# itself, because a job that has waited for an exchange of tables would know the one that its table had before.
OF_TABLE = "j.targets ->> j.sink_name = CAST(CAST(to_regclass(CAST({named_after} AS text)) AS oid) AS text)"
_IS_PUBLISHED = f"""
SELECT EXISTS (
    SELECT FROM pgonce.batch_jobs AS j WHERE j.batch_key = {{key}} AND (j.sink_name = {{sink}} OR {OF_TABLE}))
"""


def concern_in_tx(connection: psycopg.Connection, batch: Batch) -> bool:
    """
    Whether the ledger has anything that concerns the first batch of a query: a writer of the query, or a feeder.

    Our search_path must be in force. If there is none, the query has no rival.
    """
    names, oids = [batch.sink_name, *batch.tables], batch.table_oids
    statement = sql.SQL(_CONCERN + FEEDS + ")").format(
        feeder=_WRITERS, names=sql.Literal(names), oids=sql.Literal(oids), query=batch.query_id
    )
    ((is_there,),) = connection.execute(statement)
    return bool(is_there)


_CONCERN = """
SELECT EXISTS (SELECT FROM pgonce.writers WHERE query_id = {query} OR """
