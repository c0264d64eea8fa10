"""
Find what must be altered about a table that lacks columns of the rows, or is too narrow for them.

Pure; runs before Spark's job and in the commit. Invariant: a table is altered only where its batch would be refused
otherwise, and only in ways in which no Postgres from 14 to 19 rewrites it or its indexes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, NotAlteredError

from ..encoding.encoded_types import EncodedColumn
from ..options.definitions import BY_KEY
from ..options.destination import Destination
from .table.catalogue import TargetColumn, TargetTable
from .table.fit import Fit
from .table.fit_column import fit_column

# An array of any of these is rewritten, and so is a char(n), and a numeric that gets more digits after the point.
_WITHOUT_MODIFIER = frozenset({
    *(f"{name} {zone} time zone" for name in ("time", "timestamp") for zone in ("with", "without")),
    *("interval", "bit varying"),
})  # fmt: skip
_DIGITS_OF_INTEGERS = {"int2": 5, "int4": 10, "int8": 19}
_MOST_DIGITS = 1000


def wider_type(column: TargetColumn, encoded: EncodedColumn) -> str | None:
    """
    The type in which ``column`` would hold all values of ``encoded``; None if there is none, or the column has it.
    """
    wider = _wider(column, encoded)
    if wider is None or wider == column.full_type:
        return None
    base = "text" if wider == "text" else column.base_type
    fitting = fit_column(encoded, replace(column, base_type=base, full_type=wider))
    return None if fitting.fit is Fit.REFUSED or fitting.expression else wider


def is_limited(column: TargetColumn) -> bool:
    """
    Whether there are values of the column's kind that are too large for it, so that Postgres refuses them.

    Of an array this is not asked, because it has no wider type.
    """
    return re.fullmatch(r"(character varying|numeric|bit varying)\([-\d, ]+\)", column.full_type) is not None


def has_larger(value: sql.Composable, column: TargetColumn) -> sql.Composed:
    """Whether there is a ``value`` in the rows that is too large for a column that :func:`is_limited`."""
    first, *others = (int(part) for part in column.full_type.partition("(")[2].rstrip(")").split(","))
    if column.base_type == "numeric":
        test = "bool_or(abs(round({}::numeric, {})) >= 10::numeric ^ {})"
        return sql.SQL(test).format(value, others[0], first - others[0])
    if column.base_type == "bit varying":
        # A text that is not a bit string is refused, however wide the column is; others may yet need a wider one.
        test = "bool_or(CASE WHEN {0}::text ~ '^([bB]?[01]*|[xX][0-9a-fA-F]*)$' THEN length({0}::varbit) > {1} END)"
        return sql.SQL(test).format(value, first)
    # Spaces past the end of a varchar(n) are cut, as the SQL standard says.
    return sql.SQL("bool_or(char_length(rtrim({}::text, ' ')) > {})").format(value, first)


def _wider(column: TargetColumn, encoded: EncodedColumn) -> str | None:
    modifiers = re.search(r"\(([-\d, ]+)\)", column.full_type)
    numbers = [int(number) for number in modifiers[1].split(",")] if modifiers else []
    if column.base_type in _WITHOUT_MODIFIER:
        return column.base_type
    if not numbers:
        return None
    if column.base_type == "character varying":
        length = re.fullmatch(r"(?:var)?char\((\d+)\)", encoded.ddl_type)
        if length is None:
            return "text"
        return f"character varying({length[1]})" if int(length[1]) > numbers[0] else None
    if column.base_type == "numeric":
        precision, scale = numbers
        digits = _digits_before_the_point(encoded) + scale
        return f"numeric({digits},{scale})" if precision < digits <= _MOST_DIGITS else None
    return None


def _digits_before_the_point(encoded: EncodedColumn) -> int:
    declared = re.fullmatch(r"numeric\((\d+),(\d+)\)", encoded.ddl_type)
    return int(declared[1]) - int(declared[2]) if declared else _DIGITS_OF_INTEGERS.get(encoded.postgres_type, 0)


@dataclass(frozen=True)
class Change:
    """
    A column that is added, or one that gets a wider type, where ``before`` is the type that it has.

    It keeps its ``collation``: Postgres would give it the one of the new type, and build its indexes again.
    """

    column: str
    new_type: str
    before: str | None = None
    collation: str | None = None

    @property
    def clause(self) -> sql.Composed:
        """The part of ALTER TABLE that makes it."""
        clause = sql.SQL("ALTER COLUMN {} TYPE {}{}" if self.before else "ADD COLUMN {} {}{}")
        collate = sql.SQL(f" COLLATE {self.collation}" if self.collation else "")
        return clause.format(sql.Identifier(self.column), sql.SQL(self.new_type), collate)

    def __str__(self) -> str:
        what = f"has become {self.new_type} (it was {self.before})" if self.before else f"{self.new_type} was added"
        return f"column {self.column} {what}"


def changes_for(
    table: TargetTable,
    encoded: Sequence[EncodedColumn],
    destination: Destination,
    too_narrow: Collection[str] = (),
) -> tuple[Change, ...]:
    """
    The changes after which the table takes the rows, as far as Postgres makes them without rewriting it.

    :param too_narrow: columns of the rows with values that the table's columns of today refuse.
    :raises TargetError: TARGET_NOT_ALTERED, for a column that cannot be added.
    """
    if destination.schema_evolution != "addColumns" or table.kind not in ("r", "p"):
        return ()
    changes = []
    for column in encoded:
        found = table.columns_named(column.name)
        if not found and not destination.is_only_if_there(column.name):
            changes.append(Change(column.name, column.ddl_type))
        elif len(found) == 1:
            (target,) = found
            fitting = fit_column(column, target)
            # An expression refuses values that the column would round.
            is_whole = fitting.fit is not Fit.REFUSED and fitting.expression is None
            wider = None if is_whole and column.name not in too_narrow else wider_type(target, column)
            if wider:
                changes.append(Change(target.column_name, wider, target.full_type, target.collation))
    for change in changes:
        if not _is_key(change.column, table, destination):
            continue
        if change.before is None:
            reason = f"a column that it lacks ({change.column}) is one of the keys, and also needs a unique index"
            raise not_altered(table, [change], reason)
        if change.before.startswith("character varying("):
            raise _cut_key(table, change)
    return tuple(changes)


def _cut_key(table: TargetTable, change: Change) -> NotAlteredError:
    """The error for texts that are too long for a key: one whose spaces at the end were cut would become another."""
    return NotAlteredError(
        "TARGET_NOT_ALTERED",
        f"A value is too long for column {change.column!r} of {table.qualified_name} ({change.before}), and "
        "schemaEvolution=addColumns widens no text that is one of the keys: a stored key from which Postgres has cut "
        "spaces at the end would not be found any more, and its row would come twice.",
        NOTHING,
        "Shorten or leave out these values in Spark, or set deadLetters, which puts such rows aside. If no key of the "
        "source has spaces at the end, the owner of the table may widen the column.",
    )


def as_altered(table: TargetTable, changes: Sequence[Change]) -> TargetTable:
    """The table as it will be, as far as fitting the rows goes."""
    new_types = {change.column: change.new_type for change in changes if change.before}
    kept = [
        replace(column, base_type=_base(new_types[column.column_name]), full_type=new_types[column.column_name])
        if column.column_name in new_types
        else column
        for column in table.columns
    ]
    added = [
        TargetColumn(change.column, _base(change.new_type), change.new_type) for change in changes if not change.before
    ]
    return replace(table, columns=(*kept, *added))


def _base(full_type: str) -> str:
    return re.sub(r"\([-\d, ]+\)", "", full_type)


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
        or _is_key(column.name, table, destination)
        or destination.is_only_if_there(column.name)
        or column.name == destination.order_column
    )
    # If nothing is left, the error names a column.
    return kept or tuple(encoded)


def left_out(encoded: Sequence[EncodedColumn], kept: Sequence[EncodedColumn], table: TargetTable) -> str:
    """A sentence on the columns that are not written; empty if all are."""
    kept_names = {column.name for column in kept}
    names = [column.name for column in encoded if column.name not in kept_names]
    columns = f"columns {', '.join(names)}" if len(names) > 1 else f"column {', '.join(names)}"
    return (
        f"{table.qualified_name} lacks {columns} of the rows, left out by schemaEvolution=ignoreExtra." if names else ""
    )


def _is_key(name: str, table: TargetTable, destination: Destination) -> bool:
    if destination.mode not in BY_KEY:
        return False
    primary = (column.column_name for column in table.columns if column.primary_key is not None)
    return name.lower() in {key.lower() for key in destination.keys or primary}


def alter_statement(table: sql.Composable, changes: Sequence[Change]) -> sql.Composed:
    """The one ALTER TABLE that makes all changes."""
    return sql.SQL("ALTER TABLE {} {}").format(table, sql.SQL(", ").join(change.clause for change in changes))


def not_altered(
    table: TargetTable, changes: Sequence[Change], reason: str, *, altered: str | None = None
) -> NotAlteredError:
    """
    The error for changes that cannot be made, with the statement that makes them.

    :param altered: the table to alter, as SQL names it, if it is another one.
    """
    statement = alter_statement(sql.SQL(altered) if altered else table.identifier, changes).as_string(None)
    return NotAlteredError(
        "TARGET_NOT_ALTERED",
        f"{table.qualified_name} cannot take the rows as it is, and schemaEvolution=addColumns cannot alter it: "
        f"{reason}.",
        NOTHING,
        f"Remove what prevents it, and let the owner of the table run this: {statement}; then start the query "
        "again. Or rename, cast or drop the column in Spark.",
    )
