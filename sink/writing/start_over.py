"""
Delete all rows of the target for a query that starts over, if only the query that it replaces has written them.

Runs in the commit of batch 0 of a query that starts over, after the target is locked and the batch's rows are gathered.
Invariant: rows are deleted only if one query alone feeds the table, which is the one that the user has named, and only
if nothing but the table's own rows is deleted with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.ledger.writers import lock_feeders_in_tx
from pgonce.offsets_store.postgres import search_path

from .by_key.tombstone_sets import forget_in_tx
from .by_key.tombstones import lock_tombstones_in_tx
from .table.catalogue import TargetTable
from .table.empty_table import ALL_OF_IT, delete_all_in_tx


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
        named = (self.replaces, self.sink_name)
        feeders = lock_feeders_in_tx(connection, {table.qualified_name: table.oid}, or_gone=named)
        reason = _fed_by_others(feeders, *named) or _unfit(connection, table)
        if reason:
            raise _refused(table, reason)
        _forget_deletes(connection, table)
        self.deleted, kept = delete_all_in_tx(connection, table, table.oid)
        if kept is not None:
            raise _refused(table, kept.value)


def _fed_by_others(feeders: Sequence[tuple[str, str]], query_id: str, sink_name: str) -> str:
    others = [feeder for feeder in feeders if feeder != (query_id, sink_name)]
    if len(others) == len(feeders):
        return f"the ledger does not know that query {query_id} has written to it"
    beside = ", ".join(f"query {query} (sink {sink!r})" for query, sink in others)
    return beside and f"it is also fed by {beside}, whose rows would be deleted, and would not come again"


def _unfit(connection: psycopg.Connection, table: TargetTable) -> str:
    if table.row_security:
        return "row-level security hides rows from this role, and those would stay with the new ones"
    isolation, children = _asked(connection, sql.SQL(_UNFIT).format(oid=sql.Literal(table.oid)))
    if isolation != "read committed":
        return f"the isolation level is {isolation}, at which rows that were committed meanwhile are not seen"
    what = "delete or change the rows of other tables when its own are deleted"
    return f"foreign keys point at it that {what} ({children})" if children else ""


def _forget_deletes(connection: psycopg.Connection, table: TargetTable) -> None:
    """Tombstones go with the rows: they would keep out older rows, and a new query begins with those."""
    lock_tombstones_in_tx(connection, table)
    root = forget_in_tx(connection, table)
    if root is not None:
        raise _refused(table, f"deletes from it are remembered together with those from all partitions of {root}")


def _asked(connection: psycopg.Connection, statement: sql.Composable) -> tuple[object, ...]:
    cursor = connection.cursor()
    search_path.execute_in_tx(cursor, statement)
    return cursor.fetchone() or (None, None)


def _refused(table: TargetTable, reason: str) -> TargetError:
    return TargetError(
        "START_OVER_REFUSED",
        f"startOver=truncate would delete all rows of {table.qualified_name}, but {reason}.",
        NOTHING,
        "Remove the cause. Or fill another table, and exchange both with `pgonce swap`. Or empty the table yourself, "
        "and take the old query out of the way with `pgonce forget`.",
    )


# What points from the table to itself goes with it anyway. NO ACTION and RESTRICT are left to Postgres.
_UNFIT = f"""{ALL_OF_IT}
SELECT current_setting('transaction_isolation'),
       (SELECT string_agg(DISTINCT f.conrelid::regclass || '.' || quote_ident(f.conname), ', ')
        FROM pg_catalog.pg_constraint AS f JOIN part AS p ON p.oid = f.confrelid
        WHERE f.contype = 'f' AND f.confdeltype IN ('c', 'n', 'd') AND f.conrelid NOT IN (SELECT oid FROM part))
"""
