"""
How do gathered rows get into the target by key?

Runs in the commit. Invariant: a large batch is a MERGE only if that leaves the rows that ``INSERT ... ON CONFLICT``
would leave and nobody can tell which of the two it was, because only the batch's size decides.

ON CONFLICT looks each row up in the index, inserts it on trial, and confirms that in the WAL; MERGE first joins all
rows with the index (ADR 13).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.postgres import search_path
from pgonce.sink.target.catalogue import TargetTable
from pgonce.sink.target.checked_table import ColumnPlan
from pgonce.sink.target.fit import Fit
from pgonce.sink.target.key_comparison import ComparedColumn, compared_statement, comparisons, has_index_by_equality
from pgonce.sink.target.refused_values import RELEASE, SAVEPOINT
from pgonce.sink.target.statements import ComparedUpsert, Upsert, insert_statement, key_facts_statement, merge_statement

MERGED_ROWS = 50_000
"""With fewer rows, the difference in speed does not matter."""

_FIRST_VERSION = 150000

# When both do the same to a table, as far as the catalogue tells, beside its indexes:
# - Triggers see which of the two it was. If a row exists already, ON CONFLICT also checks the row that was proposed,
#   with defaults for the columns that the batch does not bring: no such column may have a default, and there may be no
#   CHECK and no EXCLUDE.
# - ON CONFLICT refuses tables with any deferrable unique index, and reads all columns.
# - At the higher isolation levels Postgres 17 lost another session's update in MERGE, without an error.
_SAME_AS_ON_CONFLICT = """
SELECT EXISTS (
    SELECT FROM pg_class AS c
    WHERE c.oid = {oid} AND c.relkind = 'r' AND current_setting('transaction_isolation') = 'read committed'
    AND has_table_privilege(c.oid, 'SELECT')
    AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
    AND NOT EXISTS (SELECT FROM pg_constraint AS r WHERE r.conrelid = c.oid AND r.contype IN ('c', 'x'))
    AND NOT EXISTS (SELECT FROM pg_index AS d WHERE d.indrelid = c.oid AND d.indisunique AND NOT d.indimmediate)
    AND NOT EXISTS (
        SELECT FROM pg_attribute AS a JOIN pg_type AS y ON y.oid = a.atttypid
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        AND a.attname::text <> ALL (ARRAY[{columns}]::text[])
        AND (a.atthasdef OR a.attidentity <> '' OR y.typtype = 'd')
    )
)
"""

# The index is used, and only as much of it as rows are looked up, as with ON CONFLICT. Otherwise Postgres might read
# the whole table for a batch that is small beside it, because it assumes that the table is on a slow disk.
_PLANNED = {"seq_page_cost": "1", "random_page_cost": "1", "enable_hashjoin": "off"}
_PLAN = sql.SQL("SELECT {}").format(
    sql.SQL(", ").join(
        sql.SQL("pg_catalog.set_config({}, pg_catalog.current_setting({name}), true), "
                "pg_catalog.set_config({name}, {}, true)").format(f"pgonce.users_{name}", value, name=name)
        for name, value in _PLANNED.items()
    )
)  # fmt: skip
_UNPLAN = sql.SQL("SELECT {}").format(
    sql.SQL(", ").join(
        sql.SQL("pg_catalog.set_config({}, pg_catalog.current_setting({}), true)").format(name, f"pgonce.users_{name}")
        for name in _PLANNED
    )
)


def upsert_in_tx(
    connection: psycopg.Connection,
    source: sql.Identifier,
    wanted: sql.Composable,
    table: TargetTable,
    plan: Sequence[ColumnPlan],
    upsert: Upsert,
    row_count: int,
) -> None:
    """
    Insert the wanted rows of ``source``, or update those with the same keys.

    :raises TargetError: NULL_KEYS; DOUBLED_KEYS, if orderBy cannot choose.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    is_large = row_count >= MERGED_ROWS
    facts = key_facts_statement(source, wanted, upsert, bounded=is_large and _has_integer_first(table, upsert))
    cursor = connection.cursor()
    # One round trip for all.
    described = search_path.under_ours(compared_statement(table, upsert))
    cursor.execute(sql.SQL("; ").join([SAVEPOINT, facts, described]), prepare=False)
    cursor.nextset()
    bounds = _checked_keys(cursor.fetchone(), upsert)
    for _ in range(1 + search_path.ANSWERS_BEFORE):
        cursor.nextset()
    compared = [ComparedColumn(*row) for row in cursor.fetchall()]
    compared_upsert = ComparedUpsert(upsert.keys, upsert.order_by, comparisons(compared, upsert))
    by_type_alone = not any(key.target in compared_upsert.comparisons for key in upsert.keys)
    # MERGE finds rows by equality, ON CONFLICT by a unique index: it must be there, mean the same, and have the keys in
    # their order, because a join goes through the rows in the order of the index.
    by_equality = by_type_alone and has_index_by_equality(compared, upsert)
    if is_large and by_equality and may_merge(connection, table, plan, upsert):
        merge = merge_statement(source, wanted, table, plan, compared_upsert, bounds)
        if merged(connection, merge):
            connection.execute(RELEASE)
            return
    try:
        insert = insert_statement(source, wanted, table, plan, compared_upsert)
        connection.execute(sql.SQL("; ").join([insert, RELEASE]), prepare=False)
    except psycopg.errors.CardinalityViolation as error:
        # A user's trigger may raise it too.
        if upsert.order_by is None or error.diag.source_function != "ExecOnConflictUpdate":
            raise
        raise _doubled_by_table(table, upsert) from None


def _doubled_by_table(table: TargetTable, upsert: Upsert) -> TargetError:
    return TargetError(
        "DOUBLED_KEYS",
        f"Two rows of the batch have the same key in {table.qualified_name}, though they differ in "
        f"{', '.join(key.target for key in upsert.keys)}: a BEFORE trigger of the table changes keys, or the table has "
        "several unique indexes on them that do not call the same keys equal.",
        NOTHING,
        "Change keys in Spark as the trigger does, so that orderBy can choose among them, or keep one of the indexes.",
    )


def _checked_keys(facts: tuple[Any, ...] | None, upsert: Upsert) -> tuple[int, int] | None:
    """The first key's least and greatest value, where they were asked for."""
    nulls, least, greatest = facts or (0, None, None)
    if nulls:
        raise TargetError(
            "NULL_KEYS",
            f"{nulls} rows of the batch have NULL in a key column ({', '.join(k.source for k in upsert.keys)}).",
            NOTHING,
            "Filter these rows out, or give them keys, before they are written.",
        )
    return None if least is None else (least, greatest)


def may_merge(connection: psycopg.Connection, table: TargetTable, plan: Sequence[ColumnPlan], upsert: Upsert) -> bool:
    """Whether nobody could tell MERGE from ON CONFLICT, if an index calls keys equal exactly if ``=`` does."""
    if connection.info.server_version < _FIRST_VERSION or table.row_security:
        return False
    # If a row exists and there is nothing to update, MERGE does not wait for a session that may be deleting the row.
    if len(upsert.keys) == len(plan) or any(key.fitting.fit is not Fit.EXACT for key in upsert.keys):
        return False
    columns = sql.SQL(", ").join(sql.Literal(column.target) for column in plan)
    same = sql.SQL(_SAME_AS_ON_CONFLICT).format(oid=table.oid, columns=columns)
    cursor = connection.cursor()
    search_path.execute_in_tx(cursor, same)
    row = cursor.fetchone()
    return row is not None and row[0]


def _has_integer_first(table: TargetTable, upsert: Upsert) -> bool:
    """Whether the first key is an integer in the rows and in the table, so that its bounds limit what is read."""
    first = upsert.keys[0]
    types = {column.column_name: column.base_type for column in table.columns}
    return first.fitting.fit is Fit.EXACT and types[first.target] in ("smallint", "integer", "bigint")


def merged(connection: psycopg.Connection, merge: sql.Composed) -> bool:
    """Run ``merge``; False if nothing was done because ON CONFLICT is needed, or can tell better what is wrong."""
    try:
        with connection.transaction():
            connection.cursor().execute(sql.SQL("; ").join([_PLAN, merge, _UNPLAN]), prepare=False)
    except _FOR_ON_CONFLICT:
        return False
    return True


# Somebody else has inserted a key meanwhile; the batch has a key twice; an extension's table does not support MERGE.
_FOR_ON_CONFLICT = (
    psycopg.errors.IntegrityError,
    psycopg.errors.CardinalityViolation,
    psycopg.errors.FeatureNotSupported,
)
