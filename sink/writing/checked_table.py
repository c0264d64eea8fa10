"""
Describe the target table, and refuse it if a batch cannot be published into it.

Runs in the commit. Invariant: both transports and all ways in pass the same check, so that what is refused does
not depend on how large a batch happened to be.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError, bad_target

from ..encoding.encoded_types import EncodedColumn
from ..options.definitions import BY_KEY
from ..options.destination import Destination
from .rows import Gathering
from .table.catalogue import TargetColumn, TargetTable
from .table.fit import Fit, Fitting
from .table.fit_column import fit_column
from .table.lock import lock_table
from .table.new_table import NewColumn, alter_statement, create_table, retyped
from .table.table_name import ResolvedName, missing_table, refuse_missing

_log = logging.getLogger("pgonce")


@dataclass(frozen=True)
class ColumnPlan:
    """How one encoded column gets into one table column, whose type is ``full_type`` (a domain's base type)."""

    source: str
    target: str
    fitting: Fitting
    full_type: str

    @property
    def value(self) -> sql.Composable:
        """A gathered row's value, cast if the target's type takes it only by a cast."""
        return self.fitting.made_of(sql.Identifier(self.source))


def check_table(table: TargetTable, destination: Destination) -> None:
    """
    Refuse a table that cannot hold rows durably, or that would do something else with them.

    A function may have made a temporary table in its transaction, for a step in between.
    """
    name = table.qualified_name
    if table.kind not in ("r", "p"):
        kinds = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}
        raise bad_target(
            "TARGET_NOT_A_TABLE",
            f"{name} is {kinds.get(table.kind, 'not a table')}, and pgonce writes only into tables whose rows are "
            "part of the transaction.",
            "Write into an ordinary or partitioned table.",
        )
    if table.is_temporary:
        _check_temporary(table, destination)
    elif table.persistence != "p":
        raise not_durable(name, f"ALTER TABLE {name} SET LOGGED.")
    elif table.unsafe_partition:
        raise not_durable(table.unsafe_partition)
    if table.rules:
        raise bad_target(
            "TARGET_HAS_RULES",
            f"{name} has rewrite rules. COPY ignores them and INSERT obeys them, so a batch's size would decide "
            "whether they apply.",
            "Replace the rules with triggers, which both obey.",
        )
    _refuse_redirected(table, destination)


def _refuse_redirected(table: TargetTable, destination: Destination) -> None:
    """Refuse to look for stored rows in a table that may have none itself, because they are in others."""
    mode, existing = destination.mode, destination.existing
    if not table.redirected or mode == "append":
        return
    what = "has tables that inherit from it, and a trigger BEFORE INSERT, which may put rows into these"
    remedy = "Use a partitioned table (PARTITION BY), whose partitions every mode knows; or mode=append"
    if table.redirected == "hypertable":
        # ON CONFLICT is what TimescaleDB looks up in the chunks.
        if mode == "upsert" and not existing.reads_stored(has_order=destination.order_by is not None):
            return
        what = "is a hypertable of TimescaleDB, whose rows are in other tables, its chunks"
        remedy += ", or mode=upsert without onlyNewer, keepWhere, and updateColumns with orderBy"
    raise bad_target(
        "ROWS_IN_CHILDREN",
        f"{table.qualified_name} {what}. mode={mode} would look for stored rows in {table.qualified_name} alone, so a "
        "row could be there twice, or stay although it is deleted or replaced.",
        f"{remedy}.",
    )


def _check_temporary(table: TargetTable, destination: Destination) -> None:
    name = table.qualified_name
    if not destination.may_be_temporary:
        raise bad_target(
            "TARGET_NOT_DURABLE",
            f"{name} is a temporary table: it is dropped at the end of this session, but the ledger would still say "
            "that its rows are there.",
            "Write into a permanent table, and name it with its schema. For an intermediate step, a transactional "
            "function may create a temporary table and write into it (page `writing` of the documentation).",
        )
    changes = destination.changes
    if changes and changes.deletes != "ignore" and destination.existing.only_newer:
        raise bad_target(
            "TARGET_NOT_DURABLE",
            f"onlyNewer is set, so deletes from {name} would be remembered for days; but it is a temporary table, "
            "which does not outlive this batch.",
            "Leave onlyNewer out here (orderBy picks the last change of each key), and set it where changes go into a "
            "permanent table.",
        )


def not_durable(name: str, remedy: str | None = None) -> TargetError:
    """The error for a table, or a partition, that a crash would empty."""
    return bad_target(
        "TARGET_NOT_DURABLE",
        f"{name} is unlogged or foreign: after a crash of Postgres, its rows could be missing although the ledger "
        "says that they are there.",
        remedy or f"If it is unlogged, ALTER TABLE {name} SET LOGGED; if it is foreign, detach that partition.",
    )


def plan_columns(
    table: TargetTable, encoded: Sequence[EncodedColumn], destination: Destination
) -> tuple[ColumnPlan, ...]:
    """
    How each encoded column gets into the table.

    Names match exactly, or else without regard to case if only one column does. Columns that are about a change, and
    not of the row, are left out if the table lacks them.

    :raises TargetError: for columns that the table lacks, needs, generates itself, or cannot hold.
    """
    plans = []
    # Rows that only delete bring keys, and no value goes into the table.
    only_deletes = destination.changes is not None and destination.changes.all_delete
    for column in encoded:
        if destination.is_only_if_there(column.name) and not table.columns_named(column.name):
            continue
        target = _find(table, column)
        if column.decoded_for not in (None, target.full_type):
            raise bad_target(
                "TYPE_MISMATCH",
                f"Records were decoded for {column.name!r} as {column.decoded_for}, and {table.qualified_name} has "
                f"{target.full_type} now: the column was altered meanwhile.",
                "Start the query again: the batch is decoded for the table as it is then.",
            )
        if target.generated and not only_deletes:
            raise _generated(table, target, column)
        fitting = fit_column(column, target)
        if fitting.fit is Fit.REFUSED:
            raise bad_target(
                "TYPE_MISMATCH",
                f"{table.qualified_name} cannot take the rows. {fitting.reason}",
                "Do that (page `types` of the documentation has the rule), or alter the table: "
                f"{retyped(table, target, column.ddl_type)} (Postgres may have to rewrite it, and some pairs of types "
                "need USING).",
            )
        plans.append(ColumnPlan(column.name, target.column_name, fitting, target.full_type))
    named = {plan.target for plan in plans}
    set_by_us = {destination.changes.soft_column} if destination.changes else set()
    if len(named) < len(plans):
        raise bad_target(
            "COLUMN_TWICE",
            f"Two columns of the rows go into one column of {table.qualified_name}.",
            "Give the DataFrame's columns names that differ in more than their case.",
        )
    missing = [c.column_name for c in table.columns if c.required and c.column_name not in named | set_by_us]
    if missing and not only_deletes:
        raise bad_target(
            "COLUMN_MISSING",
            f"{table.qualified_name} needs values for {', '.join(missing)} (NOT NULL, no default), which the rows "
            "lack.",
            "Add these columns to the DataFrame, or give them defaults in the table.",
        )
    return tuple(plans)


def _generated(table: TargetTable, target: TargetColumn, column: EncodedColumn) -> TargetError:
    remedy = f"Drop {column.name!r} from the DataFrame."
    if target.generated == "identity":
        let = sql.SQL("ALTER TABLE {} ALTER COLUMN {} SET GENERATED BY DEFAULT")
        statement = let.format(table.identifier, sql.Identifier(target.column_name)).as_string(None)
        remedy += f" If the values of the rows are to be stored, as they must be where it is a key: {statement}."
    return bad_target(
        "COLUMN_GENERATED",
        f"Column {target.column_name!r} of {table.qualified_name} is generated by Postgres, but the rows have a value "
        "for it.",
        remedy,
    )


def _find(table: TargetTable, column: EncodedColumn) -> TargetColumn:
    found = table.columns_named(column.name)
    if len(found) != 1:
        place = ", or leave it out with writePositions=false" if column.name in ("topic", "partition", "offset") else ""
        several = ", but several that differ from it only in case." if found else "."
        statement = alter_statement(table.identifier, [NewColumn(column.name, column.ddl_type)]).as_string(None)
        add = f": {statement}, as schemaEvolution=addColumns would"
        raise bad_target(
            "COLUMN_UNKNOWN",
            f"{table.qualified_name} has no column {column.name!r}{several}",
            f"Its columns are {', '.join(column.column_name for column in table.columns)}. Rename or drop "
            f"{column.name!r} in the DataFrame, or add the column to the table{'' if found else add}{place}.",
        )
    return found[0]


def without_extra(
    table: TargetTable, encoded: Sequence[EncodedColumn], destination: Destination
) -> tuple[EncodedColumn, ...]:
    """
    With ``ignoreExtra``, the columns that the table has; otherwise all of them.

    Keys are never left out, because without one of them other rows would be meant, nor is the column of ``onlyNewer``.
    """
    if destination.schema_evolution != "ignoreExtra":
        return tuple(encoded)
    kept = tuple(
        column
        for column in encoded
        if table.columns_named(column.name)
        or is_key(column.name, table, destination)
        or destination.is_only_if_there(column.name)
        or column.name == destination.order_column
    )
    # If nothing is left, the error names a column.
    return kept or tuple(encoded)


def left_out(encoded: Sequence[EncodedColumn], kept: Sequence[EncodedColumn], table: TargetTable) -> str:
    """A sentence on the columns that are not written; empty if all are."""
    kept_names = {column.name for column in kept}
    names = [column.name for column in encoded if column.name not in kept_names]
    if not names:
        return ""
    columns = f"column{'s' if len(names) > 1 else ''} {', '.join(names)}"
    return f"{table.qualified_name} lacks {columns} of the rows, left out by schemaEvolution=ignoreExtra."


def is_key(name: str, table: TargetTable, destination: Destination) -> bool:
    """Whether the rows' column of this name is one of the keys by which rows are written."""
    if destination.mode not in BY_KEY:
        return False
    return name.lower() in {key.lower() for key in destination.keys or table.primary_key}


@lru_cache(maxsize=1024)
def _say_once(oid: int, sentence: str) -> None:  # noqa: ARG001 (of two tables with one name, both are warned of)
    _log.warning("%s", sentence)


def target_for(
    connection: psycopg.Connection,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    found: ResolvedName | None,
    gathering: Gathering,
    *,
    restores_path: bool = False,
) -> tuple[TargetTable, tuple[ColumnPlan, ...]]:
    """
    The checked target of a batch, locked, and the plan of its columns; creates it if the user asked for that.

    :param found: what is known about the table's name in this transaction.
    :param gathering: brings the rows to Postgres. Where rows are gathered in any case, the table that gathers them is
        made in the round trip of the lock.
    :param restores_path: whether to set the user's search_path first.
    :raises TargetError: if the table is missing or unfit, or does not take these columns.
    """
    more = gathering.creation if destination.mode in BY_KEY else None
    found, table = lock_table(connection, destination.table, found, restores_path=restores_path, more=more)
    if table is None:
        refuse_missing(connection, found, creates=destination.create_table)
        create_table(connection, found, encoded, destination)
        found, table = lock_table(connection, destination.table, more=more)
    if table is None:
        raise missing_table(connection, found)
    check_table(table, destination)
    written = without_extra(table, encoded, destination)
    plan = plan_columns(table, written, destination)
    if extra := left_out(encoded, written, table):
        _say_once(table.oid, extra)
        table = replace(table, note=extra)
    return table, plan
