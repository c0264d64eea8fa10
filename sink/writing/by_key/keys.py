"""
Find the columns that tell rows apart, say what is newer, and are changed by an update; and look rows up by them.

Runs in the commit, and before Spark's job. Invariant: every name is one that the rows have, and is found in the table
by the same rules as all columns are. A batch deletes before it writes, so foreign keys whose actions would change a row
that has moved away from its parent are refused, unless the changes are written in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError, bad_target
from pgonce.offsets_store.postgres.search_path import LocalSettings

from ...encoding.encoded_types import EncodedColumn
from ...options.destination import Changes, Destination
from ..checked_table import ColumnPlan
from ..table.catalogue import TargetTable
from ..table.fit import Fit, Fitting
from ..table.new_table import key_unknown, nested_key
from ..written import Upsert
from .unread_value import refuse_unknown_forms


@dataclass(frozen=True)
class Comparison:
    """
    How a unique index, or the table, compares the values of a column.

    ``by_equality`` says that it calls two values equal exactly if ``=`` does, and ``is_by_value`` that only values that
    are the same are called equal. ``is_default`` says that it does as the column's type does, so that collation,
    ``<`` and ``=`` need not be named; None means the default.
    """

    name: str
    by_equality: bool
    is_default: bool
    is_by_value: bool
    is_deterministic: bool
    collation: sql.SQL | None
    less: sql.SQL | None
    equal: sql.SQL | None


@dataclass(frozen=True)
class ComparedUpsert(Upsert):
    """
    An upsert into a table whose catalogue has been read.

    ``comparisons`` are the target's, by column name; columns that are not named follow the default of their type.
    ``has_index`` says whether a unique index has exactly the keys, and ``by_equality`` whether one has them in their
    order and calls keys equal exactly if ``=`` does. ``is_one_each`` says that the rows have one for each key already.
    """

    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    has_index: bool = False
    by_equality: bool = False
    is_one_each: bool = False

    def equal(self, name: str) -> sql.Composable:
        """The operator that says whether two values of this column are the same: that of the target's index."""
        comparison = self.comparisons.get(name)
        return comparison.equal if comparison and comparison.equal else sql.SQL("OPERATOR(pg_catalog.=)")

    @property
    def finds_by_index(self) -> bool:
        """Whether Postgres can find the stored row of a key in an index."""
        return self.by_equality and all(key.fitting.fit is Fit.EXACT for key in self.keys)


def plan_upsert(
    destination: Destination, plan: Sequence[ColumnPlan], table: TargetTable, encoded: Sequence[EncodedColumn]
) -> Upsert:
    """
    How ``destination`` writes by key.

    :raises TargetError: NO_KEYS, KEY_UNKNOWN, ORDER_UNKNOWN, COLUMN_UNKNOWN, DELETE_ACTION, NESTED_KEY,
        VALUE_NOT_READ.
    """
    refuse_unordered_actions(table, destination)
    existing = destination.existing
    named = destination.keys or table.primary_key
    if not named:
        raise bad_target(
            "NO_KEYS",
            f"No keys are given, and {table.qualified_name} has no primary key.",
            'Set keys, for example "id" or "region,day", or give the table a primary key.',
        )
    keys = tuple(find_column(key, plan) for key in named)
    _refuse_nested(keys, table, encoded)
    changed = tuple(find_column(name, plan, "updateColumns").target for name in existing.update_columns)
    order = _order(destination, plan, encoded)
    if existing.keep_where is not None:
        by_name = {column.name: column for column in encoded}
        for column in plan:
            if column not in (*keys, order):
                refuse_unknown_forms(table, by_name[column.source], column.target)
    return Upsert(
        keys=keys,
        order_by=order,
        existing=replace(existing, update_columns=changed),
        of_letters=destination.of_letters,
    )


def _refuse_nested(keys: Sequence[ColumnPlan], table: TargetTable, encoded: Sequence[EncodedColumn]) -> None:
    for column in encoded:
        for key in keys:
            if key.source == column.name and key.fitting.is_json:
                raise nested_key(table.qualified_name, column)


def _order(destination: Destination, plan: Sequence[ColumnPlan], encoded: Sequence[EncodedColumn]) -> ColumnPlan | None:
    name = destination.order_column
    if name is None:
        return None
    if destination.existing.only_newer or any(name in (column.source, column.target) for column in plan):
        return find_column(name, plan)
    # The table need not have it, if rows are compared only within the batch.
    found = next((column for column in encoded if column.name.lower() == name.lower()), None)
    if found is None:
        return find_column(name, plan)
    return next(
        (column for column in plan if column.source == found.name),
        ColumnPlan(found.name, found.name, Fitting(Fit.EXACT), found.ddl_type),
    )


def find_column(name: str, plan: Sequence[ColumnPlan], option: str = "keys or orderBy") -> ColumnPlan:
    """:raises TargetError: KEY_UNKNOWN, if the rows have no column of this name that goes into the table."""
    exact = [column for column in plan if name in (column.source, column.target)]
    found = exact or [column for column in plan if column.source.lower() == name.lower()]
    if len(found) != 1:
        raise key_unknown(name, [column.source for column in plan], option)
    return found[0]


# Random reads cost the same as others. Otherwise Postgres might read the whole table for a batch that is small against
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
    return _FROM_INDEX.execute_in_tx(connection, statement)


def execute_by_index(connection: psycopg.Connection, statement: sql.Composable) -> psycopg.Cursor[Any]:
    """Execute a ``MERGE`` by keys that have an index; the cursor is at its answer."""
    return _BY_INDEX_ALONE.execute_in_tx(connection, statement)


_ACTIONS = "ON DELETE CASCADE, SET NULL or SET DEFAULT"


def deletes_act_on_itself(table: TargetTable, changes: Changes | None) -> bool:
    """Whether a delete may change rows of the same table that the batch writes."""
    return _deletes_and_writes(changes) and table.root in table.deletes_reach


def refuse_unordered_actions(table: TargetTable, destination: Destination) -> None:
    """:raises TargetError: DELETE_ACTION, if deletes change other rows of the table, and changes have no order."""
    if deletes_act_on_itself(table, destination.changes) and destination.order_by is None:
        raise delete_action(
            f"Deleting rows of {table.qualified_name} changes other rows of it, by a foreign key with {_ACTIONS}, "
            "and orderBy is not set: it is unknown whether a row had moved to another parent before its parent was "
            "deleted.",
            "Set orderBy to a column whose value is different for each change. Or let",
        )


def refuse_actions_between(tables: Sequence[tuple[TargetTable, Changes | None]]) -> None:
    """:raises TargetError: DELETE_ACTION, if deletes from one of these tables change rows of another one."""
    for table, changes in tables:
        reached = [other for other, _ in tables if other.root != table.root and other.root in table.deletes_reach]
        if reached and _deletes_and_writes(changes):
            raise delete_action(
                f"Deleting rows of {table.qualified_name} changes rows of {reached[0].qualified_name}, by a foreign "
                f"key with {_ACTIONS}, and the query writes both tables. They are written one after the other, so "
                "the delete of a parent could change a row that has already moved to another parent.",
                "Let",
            )


def delete_action(what: str, remedy: str) -> TargetError:
    """The error; ``remedy`` is how the way out begins."""
    return bad_target(
        "DELETE_ACTION",
        what,
        f"{remedy} the foreign key have no action here (ON DELETE NO ACTION DEFERRABLE INITIALLY DEFERRED): when a "
        "foreign key of the source deletes or changes rows, the change feed sends these changes as well.",
    )


def _deletes_and_writes(changes: Changes | None) -> bool:
    return changes is not None and changes.deletes == "hard" and not changes.all_delete


def shortened_value(value: object) -> str:
    """A value as an error shows it."""
    text = str(value)
    return text if len(text) <= _LONGEST_KEY else f"{text[:_LONGEST_KEY]}..."


_LONGEST_KEY = 100
