"""
Delete all rows of a table before those of a batch replace them.

Runs in the commit, after the table is locked. Invariant: if a trigger keeps rows, or no policy lets this role delete
them, the batch is refused, so that old rows never stay with the new ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import bad_target
from pgonce.offsets_store.postgres import search_path

from .table.catalogue import TargetTable
from .table.lock import take_turn_of_replacing_in_tx
from .table.table_name import QualifiedName


def replace_all_in_tx(connection: psycopg.Connection, table: QualifiedName, oid: int) -> None:
    """
    Delete all rows of a table that gets others.

    :raises TargetError: TRIGGER_CHANGED_ROWS, ROWS_NOT_WRITTEN.
    """
    # Transactions that replace all rows take turns: if two ran at once, neither would see and delete the other's rows.
    take_turn_of_replacing_in_tx(connection, oid)
    what = f"All rows of {table.qualified_name} are to be replaced, but"
    cursor = connection.cursor()
    # Not TRUNCATE: it locks readers out, and older snapshots would see the table empty. In one round trip with the
    # question, whose statements stand under our search_path.
    delete = sql.SQL("DELETE FROM {}").format(table.only)
    question = search_path.under_ours(sql.SQL(_WHAT_KEEPS_ROWS).format(oid=oid))
    cursor.execute(sql.SQL("; ").join([delete, question]), prepare=False)
    deleted = cursor.rowcount
    for _ in range(1 + search_path.ANSWERS_BEFORE):
        cursor.nextset()
    keeps, hears, has_no_policy, has_policies, may_see = cursor.fetchone() or (False, False, False, False, False)
    if has_no_policy:
        raise bad_target(
            "ROWS_NOT_WRITTEN",
            f"{what} row-level security has no policy by which this role may delete rows, so all old rows would stay.",
            "Give the role a policy FOR DELETE (or FOR ALL) by which it may delete the rows that it replaces.",
        )
    any_row = sql.SQL("SELECT FROM {} LIMIT 1").format(table.only)
    # A transaction that was in its COMMIT may have updated a row, for which the DELETE has waited, and inserted another
    # one, which that did not see. A DELETE that finds nothing has deleted no half of another transaction.
    times = 1
    while deleted and times < _MOST_TIMES:
        # A trigger hears of each DELETE, so one that would find nothing is left out.
        if hears and not (may_see and connection.execute(any_row).rowcount):
            break
        deleted, times = connection.execute(delete).rowcount, times + 1
    if keeps and connection.execute(any_row).rowcount:
        by = "a trigger BEFORE DELETE, or row-level security," if has_policies else "a trigger BEFORE DELETE"
        raise bad_target(
            "TRIGGER_CHANGED_ROWS",
            f"{what} {by} has kept old rows, which would stay in the table with the new ones.",
            "Let triggers delete rows, or write with mode=append or mode=upsert, or to another table.",
        )


def refuse_reaching_others(connection: psycopg.Connection, replaced: Sequence[TargetTable]) -> None:
    """
    Refuse to replace all rows of tables if that would delete or change rows of others, which nothing writes again.

    :param replaced: all tables whose rows the batch replaces.
    :raises TargetError: DELETE_ACTION.
    """
    roots = {table.root for table in replaced}
    for table in replaced:
        others = sorted(set(table.deletes_reach) - roots)
        if others:
            name = sql.SQL("SELECT {}::oid::regclass::text").format(sql.Literal(others[0]))
            row = search_path.execute_in_tx(connection, name).fetchone()
            raise bad_target(
                "DELETE_ACTION",
                f"All rows of {table.qualified_name} are to be replaced, and deleting them deletes or changes rows of "
                f"{row[0] if row else others[0]}, by a foreign key with ON DELETE CASCADE, SET NULL or SET DEFAULT. "
                "Nothing would write these rows again.",
                "Let the foreign key have no action (ON DELETE NO ACTION DEFERRABLE INITIALLY DEFERRED): the keys that "
                "come again are there when it is checked. Or write with mode=upsert.",
            )


_MOST_TIMES = 5
"""After so many, rows are left only if others commit all the time, or if a trigger puts them back: these stay."""


# A row trigger (1) before (2) a delete (8), or any trigger of a delete. With policies, a role deletes the rows that
# they show it: its tenant's, for example. Without one, it deletes nothing. With both, rows that it still sees may have
# been kept by the trigger, and nothing tells them from those that it may only read.
_WHAT_KEEPS_ROWS = """
WITH of_part AS (
    SELECT t.tgtype FROM pg_catalog.pg_trigger AS t WHERE NOT t.tgisinternal AND t.tgenabled <> 'D'
    AND (t.tgrelid = {oid} OR t.tgrelid IN (SELECT p.relid FROM pg_catalog.pg_partition_tree({oid}) AS p))
)
SELECT EXISTS (SELECT FROM of_part WHERE tgtype & 11 = 11), EXISTS (SELECT FROM of_part WHERE tgtype & 8 = 8),
row_security_active({oid}) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_policy AS y
    WHERE y.polrelid = {oid} AND y.polpermissive AND y.polcmd IN ('*', 'd')
    AND (0 = ANY (y.polroles) OR EXISTS (SELECT FROM unnest(y.polroles) AS r WHERE pg_has_role(r, 'USAGE')))
), row_security_active({oid}), has_table_privilege({oid}, 'SELECT')
"""
