"""
Find out whether a value that a constraint allows once may have moved between rows that have no order.

Runs in the commit, after the refused statement was rolled back. Invariant: where this cannot be found out, the batch is
refused, because a row that only came too early would be called bad.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.postgres import search_path
from pgonce.sink.target.dead_letters.conflicts import unique_columns
from pgonce.sink.target.gathering import GatheredRows
from pgonce.sink.target.refused_values import Written
from pgonce.sink.target.statements import that_write, value_of


def refuse_moved_values(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, error: psycopg.Error
) -> None:
    """
    Refuse the rows if a stored row has a value that ``error`` says is there, and they may take it away from that row.

    :raises TargetError: UNIQUE_VALUE_MOVED.
    """
    name, table = error.diag.constraint_name, written.table.qualified_name
    if _may_have_moved(connection, gathered, written, error):
        raise TargetError(
            "UNIQUE_VALUE_MOVED",
            f"Constraint or index {name!r} of {table} refuses the batch. A value may have moved from one row to "
            "another in it, and nothing says which of the two changes came first.",
            NOTHING,
            f"Set orderBy to a column that gives each change a place of its own. Or drop {name!r} and add it again as "
            "a constraint that is DEFERRABLE INITIALLY DEFERRED: it is then checked when all rows are there. If no "
            "value has moved, the batch has a row whose value belongs to another row: remove it in Spark.",
        ) from None


def _may_have_moved(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, error: psycopg.Error
) -> bool:
    names = unique_columns(connection, error)
    plan = {column.target: column for column in written.plan}
    if not names or written.upsert is None or not plan.keys() >= set(names):
        # An exclusion constraint, an index on an expression or with a condition, or a column with a default.
        return True
    keys = [key.target for key in written.upsert.keys]
    values = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(value_of(plan[column]), sql.Identifier(column)) for column in {*names, *keys}
    )
    writes = gathered.only(that_write(written.changes)) if written.changes else gathered
    of_keys = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(value_of(plan[column]), sql.Identifier(column)) for column in keys
    )
    query = sql.SQL(
        "SELECT EXISTS (SELECT FROM (SELECT {values} FROM {source} WHERE {that_write}) AS s "
        "JOIN {table} AS target ON {same_value} JOIN (SELECT {of_keys} FROM {source} WHERE {wanted}) AS given "
        "ON {given_key} WHERE NOT ({same_key}))"
    ).format(
        values=values,
        of_keys=of_keys,
        source=gathered.source,
        that_write=writes.wanted,
        wanted=gathered.wanted,
        table=written.table.identifier,
        same_value=_equal(names, "target", "s"),
        given_key=_equal(keys, "target", "given"),
        same_key=_equal(keys, "target", "s"),
    )
    try:
        with connection.transaction():
            cursor = connection.cursor()
            search_path.execute_in_tx(cursor, query)
            row = cursor.fetchone()
    except (psycopg.errors.DataError, psycopg.errors.ProgrammingError):
        # Types without an equality of Postgres's own; a table that the role may not read.
        return True
    return bool(row and row[0])


def _equal(names: list[str], left: str, right: str) -> sql.Composable:
    same = sql.SQL("{} = {}")
    return sql.SQL(" AND ").join(same.format(sql.Identifier(left, name), sql.Identifier(right, name)) for name in names)
