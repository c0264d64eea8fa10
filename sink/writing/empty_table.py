"""
Delete all rows of a table before others replace them: those of a batch, or those of a query that starts over.

Runs in the commit, after the table is locked (and, to start over, after the rows of batch 0 are gathered). Invariant:
if a trigger keeps rows, or no policy lets this role delete them, the batch is refused, so that old rows never stay with
the new ones. To start over, rows are deleted only if one query alone feeds the table, which is the one that the user
has named, and only if nothing but the table's own rows is deleted with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.ledger.feeders import Feeder, count_jobs_in_tx, lock_feeders_in_tx
from pgonce.offsets_store.log_lines import in_command
from pgonce.offsets_store.postgres import search_path

from .by_key.tombstone_sets import forget_in_tx
from .table.catalogue import TargetTable
from .table.lock import take_turn_of_newer_in_tx, take_turn_of_replacing_in_tx
from .table.table_name import QualifiedName


class _Kept(Enum):
    """Why rows are still there after all were deleted."""

    BY_A_TRIGGER = "a trigger BEFORE DELETE has kept old rows, which would stay in the table with the new ones"
    BY_EITHER = (
        "a trigger BEFORE DELETE, or row-level security, has kept old rows, which would stay in the table "
        "with the new ones"
    )
    BY_POLICIES = (
        "row-level security has no policy by which this role may delete rows, so all old rows would stay in the table"
    )


def replace_all_in_tx(connection: psycopg.Connection, table: QualifiedName, oid: int) -> None:
    """
    Delete all rows of a table that gets others.

    :raises TargetError: SNAPSHOT_TOO_OLD, TRIGGER_CHANGED_ROWS, ROWS_NOT_WRITTEN.
    """
    # Transactions that replace all rows take turns: if two ran at once, neither would see and delete the other's rows.
    take_turn_of_replacing_in_tx(connection, oid)
    _, kept = _delete_all_in_tx(connection, table, oid)
    if kept is None:
        return
    what = f"All rows of {table.qualified_name} are to be replaced, but {kept.value}."
    if kept in (_Kept.BY_A_TRIGGER, _Kept.BY_EITHER):
        remedy = "Let triggers delete rows, or write with mode=append or mode=upsert, or to another table."
        raise TargetError("TRIGGER_CHANGED_ROWS", what, NOTHING, remedy)
    remedy = "Give the role a policy FOR DELETE (or FOR ALL) by which it may delete the rows that it replaces."
    raise TargetError("ROWS_NOT_WRITTEN", what, NOTHING, remedy)


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
            raise TargetError(
                "DELETE_ACTION",
                f"All rows of {table.qualified_name} are to be replaced, and deleting them deletes or changes rows of "
                f"{row[0] if row else others[0]}, by a foreign key with ON DELETE CASCADE, SET NULL or SET DEFAULT. "
                "Nothing would write these rows again.",
                NOTHING,
                "Let the foreign key have no action (ON DELETE NO ACTION DEFERRABLE INITIALLY DEFERRED): the keys that "
                "come again are there when it is checked. Or write with mode=upsert.",
            )


def _delete_all_in_tx(connection: psycopg.Connection, table: QualifiedName, oid: int) -> tuple[int, _Kept | None]:
    """How many rows were deleted, and what kept others from it, if anything did."""
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
        return deleted, _Kept.BY_POLICIES
    any_row = sql.SQL("SELECT FROM {} LIMIT 1").format(table.only)
    # A transaction that was in its COMMIT may have updated a row, for which the DELETE has waited, and inserted another
    # one, which that did not see. A DELETE that finds nothing has deleted no half of another transaction.
    again, times = deleted, 1
    while again and times < _MOST_TIMES:
        # A trigger hears of each DELETE, so one that would find nothing is left out.
        if hears and not (may_see and connection.execute(any_row).rowcount):
            break
        again = connection.execute(delete).rowcount
        deleted, times = deleted + again, times + 1
    if keeps and connection.execute(any_row).rowcount:
        return deleted, _Kept.BY_EITHER if has_policies else _Kept.BY_A_TRIGGER
    return deleted, None


_MOST_TIMES = 5
"""After so many, rows are left only if others commit all the time, or if a trigger puts them back: these stay."""


_ALL_OF_IT = """
WITH RECURSIVE part AS (
    SELECT {oid}::oid AS oid
    UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits AS i JOIN part AS p ON p.oid = i.inhparent
    JOIN pg_catalog.pg_class AS c ON c.oid = i.inhrelid WHERE c.relispartition
)
"""
"""The oids of a table and of its partitions."""

# A row trigger (1) before (2) a delete (8), or any trigger of a delete. With policies, a role deletes the rows that
# they show it: its tenant's, for example. Without one, it deletes nothing. With both, rows that it still sees may have
# been kept by the trigger, and nothing tells them from those that it may only read.
_WHAT_KEEPS_ROWS = f"""{_ALL_OF_IT}
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_trigger AS t JOIN part AS p ON p.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 11 = 11
), EXISTS (
    SELECT FROM pg_catalog.pg_trigger AS t JOIN part AS p ON p.oid = t.tgrelid
    WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 8 = 8
), row_security_active({{oid}}) AND NOT EXISTS (
    SELECT FROM pg_catalog.pg_policy AS y
    WHERE y.polrelid = {{oid}} AND y.polpermissive AND y.polcmd IN ('*', 'd')
    AND (0 = ANY (y.polroles) OR EXISTS (SELECT FROM unnest(y.polroles) AS r WHERE pg_has_role(r, 'USAGE')))
), row_security_active({{oid}}), has_table_privilege({{oid}}, 'SELECT')
"""


@dataclass
class StartOver:
    """The rows of query ``replaces`` for this sink give way to those of a new query; ``deleted`` counts them."""

    replaces: str
    sink_name: str
    deleted: int = 0

    def empty_in_tx(self, connection: psycopg.Connection, table: TargetTable) -> None:
        """
        Delete the table's rows, under the locks of all that feed it.

        :raises TargetError: START_OVER_REFUSED.
        """
        if not self._feeders_in_tx(connection, table):
            raise _not_over(table, f"the ledger does not know that query {self.replaces} has written to it")
        reason = _unfit_to_start_over(connection, table)
        if reason:
            raise _not_over(table, reason)
        _forget_deletes(connection, table)
        self.deleted, kept = _delete_all_in_tx(connection, table, table.oid)
        if kept is not None:
            raise _not_over(table, kept.value)
        # Those whose COMMIT the deletes have waited for are known by now.
        self._feeders_in_tx(connection, table)

    def _feeders_in_tx(self, connection: psycopg.Connection, table: TargetTable) -> Sequence[Feeder]:
        """
        Lock all that feed the table.

        :raises TargetError: START_OVER_REFUSED, if others than the query that is replaced have rows in it.
        """
        named = (self.replaces, self.sink_name)
        tables = {table.qualified_name: table.oid}
        feeders = lock_feeders_in_tx(connection, tables, or_gone=named)
        others = [feeder for feeder in feeders if (feeder.query_id, feeder.sink_name) != named]
        rows_of_others = _fed_by_others(others) or _fed_by_jobs(count_jobs_in_tx(connection, tables))
        if rows_of_others:
            raise _not_over(table, rows_of_others, _forget_retired(others))
        return feeders


def _fed_by_others(others: Sequence[Feeder]) -> str:
    beside = ", ".join(f"query {other.query_id} (sink {other.sink_name!r})" for other in others)
    return beside and (
        f"other queries also feed it, or have fed it ({beside}): their rows would be deleted as well, and nothing "
        "would write them again"
    )


def _forget_retired(others: Sequence[Feeder]) -> str:
    commands = ", ".join(
        f"`pgonce forget {in_command(other.query_id, 'QUERY')} --sink {in_command(other.sink_name, 'SINK')} "
        "--reason ... --yes`"
        for other in others
        if other.is_retired
    )
    return commands and (
        f" If rows of queries that were retired are no longer in the table, or may be lost, forget these: {commands}."
    )


def _fed_by_jobs(jobs: int) -> str:
    if not jobs:
        return ""
    return (
        f"batch jobs have written to it ({jobs} batchKeys): their rows would be deleted as well, and a job that is run "
        "again is skipped, because its batchKey stays"
    )


def _unfit_to_start_over(connection: psycopg.Connection, table: TargetTable) -> str:
    if table.row_security:
        return "row-level security hides rows from this role, and these rows would stay in the table"
    if table.redirected:
        return "its rows may be in tables that inherit from it, which would keep them"
    statement = sql.SQL(_UNFIT_TO_START_OVER).format(oid=sql.Literal(table.oid))
    isolation, children = search_path.execute_in_tx(connection, statement).fetchone() or (None, None)
    if isolation != "read committed":
        return f"the isolation level is {isolation}, which does not see rows that were committed meanwhile"
    if children:
        return f"foreign keys of other tables refer to it, and would delete or change rows there ({children})"
    return ""


def _forget_deletes(connection: psycopg.Connection, table: TargetTable) -> None:
    """Tombstones go with the rows: they would keep out older rows, and a new query begins with those."""
    take_turn_of_newer_in_tx(connection, table.oid)
    root = forget_in_tx(connection, table)
    if root is not None:
        raise _not_over(table, f"deletes from it are remembered together with those from all partitions of {root}")


_BY_HAND = " Or empty the table yourself, and remove the old query with `pgonce forget`."


def _not_over(table: TargetTable, reason: str, more: str = _BY_HAND) -> TargetError:
    return TargetError(
        "START_OVER_REFUSED",
        f"startOver=truncate would delete all rows of {table.qualified_name}, but {reason}.",
        NOTHING,
        f"Remove the cause. Or fill another table, and let it take the place of this one.{more}",
    )


# What points from the table to itself goes with it anyway. NO ACTION and RESTRICT are left to Postgres.
_UNFIT_TO_START_OVER = f"""{_ALL_OF_IT}
SELECT current_setting('transaction_isolation'),
       (SELECT string_agg(DISTINCT f.conrelid::regclass || '.' || quote_ident(f.conname), ', ')
        FROM pg_catalog.pg_constraint AS f JOIN part AS p ON p.oid = f.confrelid
        WHERE f.contype = 'f' AND f.confdeltype IN ('c', 'n', 'd') AND f.conrelid NOT IN (SELECT oid FROM part))
"""
