"""
Upsert gathered rows into the target, by keys as the target compares them.

Runs in the commit. Invariants: a large batch is a MERGE only if that leaves the rows that ``INSERT ... ON CONFLICT``
would leave and no trigger can tell which of the two it was, because only the batch's size decides. Two rows have the
same key exactly if the unique index that ON CONFLICT uses calls them equal, by its collations and operator classes; the
newer one is found by the collation of the table's own column.

ON CONFLICT looks each row up in the index, inserts it on trial, and confirms that in the WAL; MERGE first joins all
rows with the index (ADR 13).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NullKeyError, TargetError, bad_target
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.postgres.refused_rows import UPDATES_A_ROW_TWICE, add_note

from ...options.destination import ORIGIN_COLUMN
from ..checked_table import ColumnPlan
from ..rows import BACK, RELEASE, SAVEPOINT, GatheredRows, fail_in_tx
from ..table.catalogue import TargetTable
from ..table.fit import Fit
from ..written import Upsert, Written
from .keys import ComparedUpsert, Comparison, execute_by_index, shortened_value
from .statements import (
    doubled_key_statement,
    insert_statement,
    key_facts_statement,
    merge_statement,
    several_origins_statement,
)

MERGED_ROWS = 50_000
"""With fewer rows, the difference in speed does not matter."""

_FIRST_VERSION = 150000

# When both do the same to a table, as far as the catalogue tells, in addition to its indexes:
# - Triggers see which of the two it was. If a row exists already, ON CONFLICT also checks the row that was proposed,
#   with defaults for the columns that the batch does not bring: no such column may have a default, and there may be no
#   CHECK and no EXCLUDE.
# - ON CONFLICT refuses tables with any deferrable unique index, and reads all columns.
_SAME_AS_ON_CONFLICT = """
SELECT EXISTS (
    SELECT FROM pg_class AS c
    WHERE c.oid = {oid} AND c.relkind = 'r' AND has_table_privilege(c.oid, 'SELECT')
    AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = c.oid AND NOT t.tgisinternal)
    AND NOT EXISTS (SELECT FROM pg_constraint AS r WHERE r.conrelid = c.oid AND r.contype = 'c')
    AND NOT EXISTS (SELECT FROM pg_index AS d WHERE d.indrelid = c.oid
                    AND (d.indisexclusion OR d.indisunique AND NOT d.indimmediate))
    AND NOT EXISTS (
        SELECT FROM pg_attribute AS a JOIN pg_type AS y ON y.oid = a.atttypid
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        AND a.attname::text <> ALL (ARRAY[{columns}]::text[])
        AND (a.atthasdef OR a.attidentity <> '' OR y.typtype = 'd')
    )
)
"""


def upsert_in_tx(connection: psycopg.Connection, rows: GatheredRows, written: Written) -> int:
    """
    Insert ``rows``, or update those with the same keys; return how many rows were written.

    :raises TargetError: NULL_KEYS; DOUBLED_KEYS, if orderBy cannot choose.
    :raises psycopg.Error: what Postgres says of the rows; the commit translates it.
    """
    table, upsert = written.table, written.by_key
    bounded = is_large(rows.count) and _has_integer_first(table, upsert)
    found, compared = compare_in_tx(connection, table, upsert, key_facts_statement(rows, upsert, bounded=bounded))
    nulls, *bounds = found or (0, None, None)
    if nulls:
        raise null_keys(nulls, upsert)
    refuse_several_origins(connection, rows, written, compared)
    return write_by_key_in_tx(
        connection, rows, table, written.plan, compared, None if bounds[0] is None else (bounds[0], bounds[1])
    )


def compare_in_tx(
    connection: psycopg.Connection, table: TargetTable, upsert: Upsert, facts: sql.Composable
) -> tuple[tuple[Any, ...] | None, ComparedUpsert]:
    """
    The answer to ``facts``, a question about the gathered rows, and the upsert as the target compares keys.

    It sets the savepoint for going back to look for a refused value.
    """
    cursor = connection.cursor()
    described = search_path.under_ours(compared_statement(table, upsert))
    # One round trip for all.
    cursor.execute(sql.SQL("; ").join([SAVEPOINT, facts, described]), prepare=False)
    cursor.nextset()
    found = cursor.fetchone()
    for _ in range(1 + search_path.ANSWERS_BEFORE):
        cursor.nextset()
    return found, as_compared(upsert, cursor.fetchall())


def write_by_key_in_tx(
    connection: psycopg.Connection,
    rows: GatheredRows,
    table: TargetTable,
    plan: Sequence[ColumnPlan],
    upsert: ComparedUpsert,
    bounds: tuple[int, int] | None = None,
    *,
    is_last: bool = True,
) -> int:
    """
    Insert ``rows`` or update those of their keys, by the faster of the two statements.

    :param bounds: the first key's least and greatest value, where they are known.
    :param is_last: whether no other row of the batch is written afterwards, so that the savepoint may go.
    """
    if is_large(rows.count) and upsert.finds_by_index and _may_merge(connection, table, plan, upsert):
        done = merged(connection, merge_statement(rows, table, plan, upsert, bounds))
        if done is not None:
            if is_last:
                connection.execute(RELEASE)
            return done.rowcount
    try:
        insert = insert_statement(rows.source, rows.wanted, table, plan, upsert)
        statements = [insert, RELEASE] if is_last else [insert]
        return connection.execute(sql.SQL("; ").join(statements), prepare=False).rowcount
    except psycopg.errors.CardinalityViolation as error:
        # A user's trigger may raise it too.
        is_single = upsert.order_by is not None or upsert.is_one_each
        if error.diag.source_function not in UPDATES_A_ROW_TWICE:
            raise
        if not is_single:
            note_doubled(connection, error, rows, upsert)
            raise
        raise bad_target(
            "DOUBLED_KEYS",
            f"Two rows of the batch have the same key in {table.qualified_name}, though they differ in "
            f"{', '.join(key.target for key in upsert.keys)}: a BEFORE trigger of the table changes keys, or the table "
            "has several unique indexes on these columns that compare keys differently.",
            "Change the keys in Spark as the trigger does, so that orderBy can choose between the rows; or keep only "
            "one of the indexes.",
        ) from None


def null_keys(count: int, upsert: Upsert) -> NullKeyError:
    """The error for rows that lack a key: they conflict with nothing, so each replay would add them again."""
    return NullKeyError.usual(
        "NULL_KEYS",
        f"{count} rows of the batch have NULL in a key column ({', '.join(k.source for k in upsert.keys)}).",
        "Filter these rows out, or give them keys, before they are written.",
    )


def refuse_several_origins(
    connection: psycopg.Connection,
    rows: GatheredRows,
    written: Written,
    upsert: ComparedUpsert,
    *,
    in_turn: bool = False,
) -> None:
    """:raises TargetError: DOUBLED_KEYS, if offsets order records, and those of a key come from several partitions."""
    if all(column.name != ORIGIN_COLUMN for column in written.columns):
        return
    try:
        found = connection.execute(several_origins_statement(rows, upsert), prepare=False).fetchone()
    except psycopg.DataError:
        if not in_turn:
            # All at once fails for the same value, and then the rows are written in their turn.
            raise
        raise _several_origins(
            "A key cannot be read as its column's type, so it is unknown whether there are"
        ) from None
    if found is not None:
        raise _several_origins(f"{_for_example(found, upsert)}: these are")


def _several_origins(what: str) -> TargetError:
    return bad_target(
        "DOUBLED_KEYS",
        f"{what} records of one key from several partitions, whose offsets do not say which of them is the last.",
        "Set orderBy to a column that grows with every change of a key, let the producer send all records of a key to "
        "one partition, or leave a record out in Spark, with where(...) on partition and offset.",
    )


def is_large(row_count: int) -> bool:
    """Whether a batch of so many rows is worth a MERGE."""
    return row_count >= MERGED_ROWS


def _may_merge(connection: psycopg.Connection, table: TargetTable, plan: Sequence[ColumnPlan], upsert: Upsert) -> bool:
    """Whether MERGE has the same effects as ON CONFLICT, if an index calls keys equal exactly if ``=`` does."""
    # MERGE INTO ONLY would not find the rows of a hypertable, which ON CONFLICT does.
    if connection.info.server_version < _FIRST_VERSION or table.row_security or table.redirected:
        return False
    # ON CONFLICT also checks values of columns that no update sets.
    if upsert.existing.stored_stays or upsert.existing.update_columns:
        return False
    # If a row exists and there is nothing to update, MERGE does not wait for a session that may be deleting the row.
    if not upsert.changed(plan):
        return False
    columns = sql.SQL(", ").join(sql.Literal(column.target) for column in plan)
    same = sql.SQL(_SAME_AS_ON_CONFLICT).format(oid=table.oid, columns=columns)
    row = search_path.execute_in_tx(connection, same).fetchone()
    return row is not None and row[0]


def _has_integer_first(table: TargetTable, upsert: Upsert) -> bool:
    """Whether the first key is an integer in the rows and in the table, so that its bounds limit what is read."""
    first = upsert.keys[0]
    types = {column.column_name: column.base_type for column in table.columns}
    return first.fitting.fit is Fit.EXACT and types[first.target] in ("smallint", "integer", "bigint")


def merged(connection: psycopg.Connection, merge: sql.Composed) -> psycopg.Cursor[Any] | None:
    """
    Run ``merge``, and return the cursor at its answer.

    None if nothing was done, because other statements are needed, or can tell better what is wrong. After any other
    error the transaction has failed.
    """
    connection.execute("SAVEPOINT pgonce_merge")
    try:
        done = execute_by_index(connection, merge)
    except _FOR_ON_CONFLICT:
        connection.execute("ROLLBACK TO SAVEPOINT pgonce_merge")
        return None
    connection.execute("RELEASE SAVEPOINT pgonce_merge")
    return done


# Another session has inserted a key meanwhile; the batch has a key twice; or an extension's table does not support
# MERGE. Three more because MERGE asks for all that it might do, even if this batch does not: the role lacks a
# privilege; the table is published for updates or deletes and has no replica identity, or one that lacks a column of
# the publication's row filter or column list.
_FOR_ON_CONFLICT = (
    psycopg.errors.IntegrityError,
    psycopg.errors.CardinalityViolation,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.InvalidColumnReference,
)


# The writer's row is locked meanwhile, and the error is raised without a key if none is found in time.
_BOUNDED = sql.SQL("SET LOCAL statement_timeout = '60s'")


def doubled_key(connection: psycopg.Connection, rows: GatheredRows, upsert: ComparedUpsert) -> str:
    """The text of a key that several of ``rows`` have; empty if none is found. The transaction is as before."""
    try:
        with connection.transaction() as look:
            connection.execute(_BOUNDED)
            found = connection.execute(doubled_key_statement(rows, upsert), prepare=False).fetchone()
            raise psycopg.Rollback(look)
    except psycopg.Error:
        return ""
    if found is None:
        return ""
    return _for_example(found, upsert)


def _for_example(found: Sequence[Any], upsert: Upsert) -> str:
    count, *values = found
    of = ", ".join(f"{key.source} = {shortened_value(value)}" for key, value in zip(upsert.keys, values, strict=True))
    return f"For example, {count} rows have {of}"


def note_doubled(
    connection: psycopg.Connection, error: psycopg.Error, rows: GatheredRows, upsert: ComparedUpsert
) -> None:
    """Add a note to ``error``: a key that several of ``rows`` have. The transaction stays failed."""
    with suppress(psycopg.Error):
        connection.execute(BACK)
        found = doubled_key(connection, rows, upsert)
        if found:
            add_note(error, found)
    fail_in_tx(connection)


# A type's default operator class is not named, and neither is the database's collation, unless the column has another
# one. ON CONFLICT takes any unique index on the key columns, with any collations, operator classes and INCLUDEd
# columns; but none on expressions.
_COMPARED = """
SELECT x.index_oid, x.attname::text, x.by_equality,
       c.oid IS NULL AND x.less IS NULL AND coalesce(en.nspname = 'pg_catalog', true) AS is_default,
       coalesce(c.collisdeterministic, true) AND x.less IS NULL AND coalesce(en.nspname = 'pg_catalog', false)
           AS is_by_value,
       coalesce(c.collisdeterministic, true) AS is_deterministic,
       quote_ident(cn.nspname) || '.' || quote_ident(c.collname),
       'OPERATOR(' || quote_ident(pn.nspname) || '.' || p.oprname || ')',
       'OPERATOR(' || quote_ident(en.nspname) || '.' || e.oprname || ')'
FROM (
    SELECT i.indexrelid::bigint AS index_oid, n AS place, a.attname, i.indcollation[n] AS collation,
        a.attcollation AS of_column, m.amopopr AS less, q.amopopr AS equal,
        o.opcdefault AND i.indcollation[n] = a.attcollation
        AND a.attcollation IN (0, 'pg_catalog."default"'::regcollation)
        AND a.atttypid IN ('int2'::regtype, 'int4'::regtype, 'int8'::regtype, 'numeric'::regtype, 'text'::regtype,
                           'varchar'::regtype, 'uuid'::regtype, 'date'::regtype, 'timestamp'::regtype,
                           'timestamptz'::regtype) AS by_equality
    FROM pg_index AS i
    CROSS JOIN generate_series(0, i.indnkeyatts - 1) AS n
    JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[n]
    JOIN pg_opclass AS o ON o.oid = i.indclass[n]
    LEFT JOIN pg_amop AS m ON NOT o.opcdefault AND m.amopfamily = o.opcfamily AND m.amopstrategy = 1
        AND m.amoplefttype = o.opcintype AND m.amoprighttype = o.opcintype
    LEFT JOIN pg_amop AS q ON q.amopfamily = o.opcfamily AND q.amopstrategy = 3
        AND q.amoplefttype = o.opcintype AND q.amoprighttype = o.opcintype
    WHERE i.indrelid = {oid} AND i.indisunique AND i.indimmediate AND i.indisvalid AND i.indislive
    AND NOT i.indisexclusion AND i.indpred IS NULL AND i.indexprs IS NULL
    UNION ALL
    SELECT 0, 0, a.attname, a.attcollation, a.attcollation, NULL, NULL, false
    FROM pg_attribute AS a WHERE a.attrelid = {oid} AND a.attname::text = {order_by}
) AS x
LEFT JOIN pg_collation AS c ON c.oid = x.collation
    AND (c.oid <> 'pg_catalog."default"'::regcollation OR x.of_column <> c.oid)
LEFT JOIN pg_namespace AS cn ON cn.oid = c.collnamespace
LEFT JOIN pg_operator AS p ON p.oid = x.less
LEFT JOIN pg_namespace AS pn ON pn.oid = p.oprnamespace
LEFT JOIN pg_operator AS e ON e.oid = x.equal
LEFT JOIN pg_namespace AS en ON en.oid = e.oprnamespace
ORDER BY x.index_oid, x.place
"""


def compared_statement(table: TargetTable, upsert: Upsert) -> sql.Composed:
    """The query for how the table's unique indexes, and its order column, compare; it needs our search_path."""
    order_by = upsert.order_by.target if upsert.order_by else None
    return sql.SQL(_COMPARED).format(oid=table.oid, order_by=sql.Literal(order_by))


def as_compared(upsert: Upsert, answer: Iterable[Sequence[Any]]) -> ComparedUpsert:
    """
    The upsert as the table compares keys, from the answer to :func:`compared_statement`.

    If there are several unique indexes on the keys, the one that calls more keys equal decides. If another one calls
    keys equal that this one does not, Postgres refuses the rows.
    """
    by_index = {
        index: [Comparison(*row[1:6], *(text and sql.SQL(text) for text in row[6:])) for row in rows]
        for index, rows in groupby(answer, key=itemgetter(0))
    }
    own = by_index.pop(_TABLE, [])
    keys = [key.target for key in upsert.keys]
    unique = [index for index in by_index.values() if {column.name for column in index} == set(keys)]
    compared = {column.name: column for column in (*own, *max(unique, key=_looseness, default=[]))}
    comparisons = {name: column for name, column in compared.items() if not column.is_default}
    by_type = [[column.name for column in index if column.by_equality] for index in unique]
    return ComparedUpsert(
        upsert.keys,
        upsert.order_by,
        upsert.existing,
        upsert.of_letters,
        comparisons,
        has_index=bool(unique),
        # MERGE finds rows by equality, ON CONFLICT by a unique index: it must be there, mean the same, and have the
        # keys in their order, because a join goes through the rows in the order of the index.
        by_equality=comparisons.keys().isdisjoint(keys) and keys in by_type,
    )


# In the place of an index, for the table's own column.
_TABLE = 0


def _looseness(index: Sequence[Comparison]) -> tuple[int, int]:
    return sum(not column.is_deterministic for column in index), sum(column.less is not None for column in index)
