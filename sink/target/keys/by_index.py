"""
How does Postgres look rows up by their keys in an index, whatever it assumes of disks?

Runs in the commit. Invariant: the user's settings are back when the statement is done; where a savepoint is rolled
back, that brings them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql

from pgonce.sink.target.keys.key_plan import ComparedUpsert

# Random reads cost the same as others. Otherwise Postgres might read the whole table for a batch that is small beside
# it, because it assumes that the table is on a slow disk.
_COSTS = {"seq_page_cost": "1", "random_page_cost": "1"}
# So that MERGE reads only as much of the index as rows are looked up, as ON CONFLICT does.
_NO_HASH = {"enable_hashjoin": "off"}


def execute_joined(
    connection: psycopg.Connection, statement: sql.Composed, upsert: ComparedUpsert
) -> psycopg.Cursor[Any]:
    """
    Execute a statement that joins a batch's rows with the target's by key; the cursor is at its answer.

    Where Postgres believes that the table is almost empty, because it was when it was analyzed, an inner join without
    hashes would read all of it for each row. So hashes are left to Postgres here.
    """
    return _planned(connection, statement, _COSTS) if upsert.finds_by_index else connection.execute(statement)


def execute_by_index(connection: psycopg.Connection, statement: sql.Composable) -> psycopg.Cursor[Any]:
    """Execute a ``MERGE`` by keys for which there is an index; the cursor is at its answer."""
    return _planned(connection, statement, {**_COSTS, **_NO_HASH})


def _planned(
    connection: psycopg.Connection, statement: sql.Composable, settings: Mapping[str, str]
) -> psycopg.Cursor[Any]:
    set_config = sql.SQL(
        "pg_catalog.set_config({user}, pg_catalog.current_setting({name}), true), "
        "pg_catalog.set_config({name}, {value}, true)"
    )
    plan = (set_config.format(user=f"pgonce.users_{name}", name=name, value=value) for name, value in settings.items())
    set_back = sql.SQL("pg_catalog.set_config({name}, pg_catalog.current_setting({user}), true)")
    unplan = (set_back.format(user=f"pgonce.users_{name}", name=name) for name in settings)
    select = sql.SQL("SELECT {}")
    statements = [select.format(sql.SQL(", ").join(plan)), statement, select.format(sql.SQL(", ").join(unplan))]
    cursor = connection.cursor()
    cursor.execute(sql.SQL("; ").join(statements), prepare=False)
    cursor.nextset()
    return cursor
