"""
How does Postgres look rows up by their keys in an index, whatever it assumes of disks?

Runs in the commit. Invariant: the user's settings are back when the statement is done; where a savepoint is rolled
back, that brings them back.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from pgonce.sink.target.keys.key_plan import ComparedUpsert

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


def execute_joined(
    connection: psycopg.Connection, statement: sql.Composed, upsert: ComparedUpsert
) -> psycopg.Cursor[Any]:
    """Execute a statement that joins a batch's rows with the target's by key; the cursor is at its answer."""
    # Without an index that finds keys, this would read the whole table for each row.
    return execute_by_index(connection, statement) if upsert.finds_by_index else connection.execute(statement)


def execute_by_index(connection: psycopg.Connection, statement: sql.Composable) -> psycopg.Cursor[Any]:
    """Execute a statement that joins rows by keys for which there is an index; the cursor is at its answer."""
    cursor = connection.cursor()
    cursor.execute(sql.SQL("; ").join([_PLAN, statement, _UNPLAN]), prepare=False)
    cursor.nextset()
    return cursor
