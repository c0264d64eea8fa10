"""
How does Postgres look rows up by their keys in an index, whatever it assumes of disks?

Runs in the commit. Invariant: the user's settings are back when the statement is done; where a savepoint is rolled
back, that brings them back.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres.settings import LocalSettings

from .key_plan import ComparedUpsert

# Random reads cost the same as others. Otherwise Postgres might read the whole table for a batch that is small beside
# it, because it assumes that the table is on a slow disk.
_COSTS = {"seq_page_cost": "1", "random_page_cost": "1"}
_FROM_INDEX = LocalSettings(**_COSTS)
# So that MERGE reads only as much of the index as rows are looked up, as ON CONFLICT does.
_BY_INDEX_ALONE = LocalSettings(**_COSTS, enable_hashjoin="off")


def execute_joined(
    connection: psycopg.Connection, statement: sql.Composed, upsert: ComparedUpsert
) -> psycopg.Cursor[Any]:
    """
    Execute a statement that joins a batch's rows with the target's by key; the cursor is at its answer.

    Where Postgres believes that the table is almost empty, because it was when it was analyzed, an inner join without
    hashes would read all of it for each row. So hashes are left to Postgres here.
    """
    if not upsert.finds_by_index:
        return connection.execute(statement)
    cursor = connection.cursor()
    _FROM_INDEX.execute_in_tx(cursor, statement)
    return cursor


def execute_by_index(connection: psycopg.Connection, statement: sql.Composable) -> psycopg.Cursor[Any]:
    """Execute a ``MERGE`` by keys for which there is an index; the cursor is at its answer."""
    cursor = connection.cursor()
    _BY_INDEX_ALONE.execute_in_tx(cursor, statement)
    return cursor
