"""
Find out whether a value that a constraint allows once may have moved between rows that have no order.

Runs in the commit, after the refused statement was rolled back. Invariant: where this cannot be found out, the batch is
refused, because a row that only came too early would be called bad.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.postgres import search_path

from ..bad_rows.conflicts import unique_columns
from ..checked_table import ColumnPlan
from ..gathering import GatheredRows
from ..refused_values import Written
from ..statements import that_write, value_of


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
    if written.upsert is None:
        return False
    names = unique_columns(connection, error)
    plan = {column.target: column for column in written.plan}
    keys = [key.target for key in written.upsert.keys]
    # Only a stored row that the batch changes can give a value away.
    stored = sql.SQL("{table} AS target JOIN ({given}) AS given ON {same_key}").format(
        table=written.table.identifier,
        given=_selected(gathered, plan, keys),
        same_key=_equal(keys, "target", "given"),
    )
    if names and plan.keys() >= set(names):
        writes = gathered.only(that_write(written.changes)) if written.changes else gathered
        query = sql.SQL("{stored} JOIN ({rows}) AS s ON {same_value} WHERE NOT ({same_key})").format(
            stored=stored,
            rows=_selected(writes, plan, list({*names, *keys})),
            same_value=_equal(names, "target", "s"),
            same_key=_equal(keys, "target", "s"),
        )
    else:
        # An exclusion constraint, an index on an expression or with a condition, or a column with a default.
        query = stored
    try:
        with connection.transaction():
            cursor = connection.cursor()
            search_path.execute_in_tx(cursor, sql.SQL("SELECT EXISTS (SELECT FROM {})").format(query))
            row = cursor.fetchone()
    except (psycopg.errors.DataError, psycopg.errors.ProgrammingError):
        # Types without an equality of Postgres's own; a table that the role may not read.
        return True
    return bool(row and row[0])


def _selected(gathered: GatheredRows, plan: Mapping[str, ColumnPlan], names: Sequence[str]) -> sql.Composed:
    values = (sql.SQL("{} AS {}").format(value_of(plan[name]), sql.Identifier(name)) for name in names)
    return sql.SQL("SELECT {} FROM {} WHERE {}").format(sql.SQL(", ").join(values), gathered.source, gathered.wanted)


def _equal(names: Sequence[str], left: str, right: str) -> sql.Composable:
    same = sql.SQL("{} = {}")
    return sql.SQL(" AND ").join(same.format(sql.Identifier(left, name), sql.Identifier(right, name)) for name in names)
