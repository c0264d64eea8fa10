"""
Which columns tell rows apart, which say what is newer, and which does an update change?

Pure; runs in the commit and before Spark's job. Invariant: every name is one that the rows have, and is found in the
table by the same rules as all columns are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError

from ...encoding.encoded_types import EncodedColumn
from ...options.by_key import Existing
from ...options.destination import BY_KEY, Destination
from ..checked_table import ColumnPlan, nested_key
from ..fitting.fit import Fit, Fitting
from ..table.catalogue import TargetTable
from .delete_actions import refuse_unordered_actions


@dataclass(frozen=True)
class Comparison:
    """
    How a column's values are compared if they do not follow the default of their type: collation, ``<`` and ``=``.

    ``is_by_value`` says that only values that are the same are called equal.
    """

    collation: sql.Identifier | None
    less: sql.Composable | None
    equal: sql.Composable | None = None
    is_by_value: bool = False


@dataclass(frozen=True)
class Upsert:
    """
    The columns that tell rows apart, and the one that says which of two rows of a key is the newer.

    ``order_by`` need not be a column of the table, unless only newer rows are written.
    """

    keys: tuple[ColumnPlan, ...]
    order_by: ColumnPlan | None
    existing: Existing = field(default_factory=Existing)

    def changed(self, plan: Sequence[ColumnPlan]) -> list[str]:
        """The table's columns that an update sets."""
        rest = [column.target for column in plan if column not in self.keys]
        only = {*self.existing.update_columns}
        if not only:
            return rest
        if self.existing.only_newer and self.order_by is not None:
            only.add(self.order_by.target)
        return [name for name in rest if name in only]

    @property
    def has_plain_keys(self) -> bool:
        """Whether the rows have keys of the target's own types."""
        return all(key.fitting.fit is Fit.EXACT for key in self.keys)

    @property
    def newer_by(self) -> str | None:
        """The table's column that says which row is newer, if a stored row gives way only to one that is."""
        return self.order_by.target if self.existing.only_newer and self.order_by else None


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

    @property
    def finds_by_index(self) -> bool:
        """Whether Postgres can find the stored row of a key in an index."""
        return self.by_equality and self.has_plain_keys


def plan_upsert(
    destination: Destination, plan: Sequence[ColumnPlan], table: TargetTable, encoded: Sequence[EncodedColumn]
) -> Upsert | None:
    """
    How ``destination`` writes by key, or None if its mode does not.

    :raises TargetError: NO_KEYS, KEY_UNKNOWN, ORDER_UNKNOWN, COLUMN_UNKNOWN, DELETE_ACTION, NESTED_KEY.
    """
    if destination.mode not in BY_KEY:
        return None
    refuse_unordered_actions(table, destination)
    existing = destination.existing
    keys = tuple(find_column(key, plan) for key in destination.keys or _primary_key(table))
    _refuse_nested(keys, table, encoded)
    changed = tuple(find_column(name, plan, "updateColumns").target for name in existing.update_columns)
    return Upsert(
        keys=keys,
        order_by=_order(destination, plan, encoded),
        existing=existing if changed == existing.update_columns else _with_names(existing, changed),
    )


def _refuse_nested(keys: Sequence[ColumnPlan], table: TargetTable, encoded: Sequence[EncodedColumn]) -> None:
    """A composite type, and hstore, compare their parts as columns do; they are made by an expression."""
    for column in encoded:
        for key in keys:
            if key.source == column.name and column.postgres_type == "jsonb" and key.fitting.expression is None:
                raise nested_key(table.qualified_name, column)


def _with_names(existing: Existing, changed: tuple[str, ...]) -> Existing:
    return Existing(existing.on_conflict, existing.only_newer, existing.tombstone_days, changed, existing.keep_where)


def _primary_key(table: TargetTable) -> tuple[str, ...]:
    places = {c.column_name: c.primary_key for c in table.columns if c.primary_key is not None}
    if not places:
        raise TargetError(
            "NO_KEYS",
            f"No keys are given, and {table.qualified_name} has no primary key.",
            NOTHING,
            'Set keys, for example "id" or "region,day", or give the table a primary key.',
        )
    return tuple(sorted(places, key=lambda name: places[name] or 0))


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
        raise TargetError(
            "KEY_UNKNOWN",
            f"{option} names a column {name!r}, which the rows do not have.",
            NOTHING,
            f"The rows have {', '.join(column.source for column in plan)}.",
        )
    return found[0]
