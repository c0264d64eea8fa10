"""
Delete all rows of a table, before others replace them.

Runs in the commit, after the table is locked. Invariant: if a trigger keeps rows, or no policy lets this role delete
them, the batch is refused, so that old rows never stay with the new ones.
"""

from __future__ import annotations

from enum import Enum

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.postgres import search_path
from pgonce.offsets_store.postgres.settings import ANSWERS_BEFORE

from .lock import turn_of_replacing
from .table_name import QualifiedName


class Kept(Enum):
    """Why rows are still there after all were deleted."""

    BY_A_TRIGGER = "a trigger BEFORE DELETE has kept rows, which would stay with the new ones"
    BY_EITHER = "a trigger BEFORE DELETE, or row-level security, has kept rows that this role sees with the new ones"
    BY_POLICIES = (
        "row-level security has no policy by which this role deletes rows, so all would stay with the new ones"
    )


def replace_all_in_tx(connection: psycopg.Connection, table: QualifiedName, oid: int) -> None:
    """
    Delete all rows of a table that gets others.

    :raises TargetError: TRIGGER_CHANGED_ROWS, ROWS_NOT_WRITTEN.
    """
    # Transactions that replace all rows take turns: if two ran at once, neither would see and delete the other's rows.
    connection.execute(sql.SQL("SELECT {}").format(turn_of_replacing(oid)))
    _, kept = delete_all_in_tx(connection, table, oid)
    if kept is None:
        return
    what = f"All rows of {table.qualified_name} are to be replaced, but {kept.value}."
    if kept in (Kept.BY_A_TRIGGER, Kept.BY_EITHER):
        remedy = "Let triggers delete rows, or write with mode=append or mode=upsert, or to another table."
        raise TargetError("TRIGGER_CHANGED_ROWS", what, NOTHING, remedy)
    remedy = "Give the role a policy FOR DELETE (or FOR ALL) by which it deletes the rows that it replaces."
    raise TargetError("ROWS_NOT_WRITTEN", what, NOTHING, remedy)


def delete_all_in_tx(connection: psycopg.Connection, table: QualifiedName, oid: int) -> tuple[int, Kept | None]:
    """How many rows were deleted, and what kept others from it, if anything did."""
    rows = sql.Identifier(table.schema, table.name)
    cursor = connection.cursor()
    # Not TRUNCATE: it locks readers out, and older snapshots would see the table empty. In one round trip with the
    # question, whose statements stand under our search_path.
    delete = sql.SQL("DELETE FROM {}").format(rows)
    question = search_path.under_ours(sql.SQL(_WHAT_KEEPS_ROWS).format(oid=oid))
    cursor.execute(sql.SQL("; ").join([delete, question]), prepare=False)
    deleted = cursor.rowcount
    for _ in range(1 + ANSWERS_BEFORE):
        cursor.nextset()
    has_trigger, has_no_policy, has_policies = cursor.fetchone() or (False, False, False)
    if has_no_policy:
        return deleted, Kept.BY_POLICIES
    if has_trigger and connection.execute(sql.SQL("SELECT FROM {} LIMIT 1").format(rows)).rowcount:
        return deleted, Kept.BY_EITHER if has_policies else Kept.BY_A_TRIGGER
    return deleted, None


ALL_OF_IT = """
WITH RECURSIVE part AS (
    SELECT {oid}::oid AS oid
    UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i JOIN part AS p ON p.oid = i.inhparent
)
"""
"""The oids of a table and of all that a statement about it reaches."""

# A row trigger (1) before (2) a delete (8). With policies, a role deletes the rows that they show it: its tenant's, for
# example. Without one, it deletes nothing. With both, rows that it still sees may have been kept by the trigger, and
# nothing tells them from those that it may only read.
_WHAT_KEEPS_ROWS = f"""{ALL_OF_IT}
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_trigger AS t JOIN part AS p ON p.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 11 = 11
), row_security_active({{oid}}) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_policy AS y
    WHERE y.polrelid = {{oid}} AND y.polpermissive AND y.polcmd IN ('*', 'd')
    AND (0 = ANY (y.polroles) OR EXISTS (SELECT FROM unnest(y.polroles) AS r WHERE pg_has_role(r, 'USAGE')))
), row_security_active({{oid}})
"""
