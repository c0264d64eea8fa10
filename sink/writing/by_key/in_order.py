"""
Write rows by key in the order of their changes, where one statement for all of them cannot.

Runs in the commit. Invariant: what is left is what the changes would leave one by one, and no row is called bad that
fits in its turn.

Three batches need this:

- one that a unique or an exclusion constraint refuses: a value may have moved from one row to another, and one
  statement writes rows in the order of their keys;
- one of which a foreign key of the table to itself refuses a delete: a row may have moved away from its parent before
  that was deleted;
- one that deletes rows of a table whose foreign keys to itself have actions: all deletes come before all writes, so a
  row that has moved away from its parent would go with it.

The rows are numbered in the order of ``orderBy`` and written in parts, each as a batch is. A part that is refused is
halved, down to the row that is refused in its turn. Rows without an order stay in one part, and the batch is refused if
a value may have moved among them. Where no value can have moved, the rows that a query finds are written one by one
after the others, because halving takes a dozen tries for each of them.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import sql
from typing_extensions import LiteralString

from pgonce.offsets_store.errors import NOTHING, TargetError

from ..bad_row import BadRow, RowsRefusedError, is_of_target, refused_by
from ..rows import BACK, RELEASE, GatheredRows
from .keys import ComparedUpsert, Written, delete_action, deletes_act_on_itself
from .moved_rows import MovedRows
from .statements import value_as_assigned
from .unique_index import PLACE, UniqueIndex, guessed, stored_rows_of, unique_index
from .upsert import compare_in_tx
from .write_changes import StillReferredToError

_counter = itertools.count()


def refuse_moved_values(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, error: psycopg.Error
) -> None:
    """
    Refuse the rows if a stored row has a value that ``error`` says is there, and they may take it away from that row.

    :raises TargetError: UNIQUE_VALUE_MOVED.
    """
    if _may_have_moved(connection, gathered, written, unique_index(connection, written, error)):
        raise _moved(error, written) from None


def _moved(error: psycopg.Error, written: Written) -> TargetError:
    name = error.diag.constraint_name
    return TargetError(
        "UNIQUE_VALUE_MOVED",
        f"Constraint or index {name!r} of {written.table.qualified_name} refuses the batch. In this batch, a value may "
        "have moved from one row to another, and orderBy does not tell which of the two changes came first.",
        NOTHING,
        f"Set orderBy to a column whose value is different for each change. Or drop {name!r} and add it again as a "
        "constraint that is DEFERRABLE INITIALLY DEFERRED: it is then checked when all rows are there. If no value has "
        "moved, the batch has a row whose value belongs to another row: remove it in Spark.",
    )


def _may_have_moved(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, index: UniqueIndex | None
) -> bool:
    if written.upsert is None or written.upsert.existing.stored_stays:
        return False
    # Only a stored row that the batch changes can give a value away. More is not known of an exclusion constraint, and
    # of an index on a column that the rows do not bring.
    for query in ([index.moved(gathered)] if index else []) + [stored_rows_of(gathered, written)]:
        found = guessed(connection, sql.SQL("SELECT EXISTS ({})").format(query))
        if found is not None:
            return found[0][0]
    return True


Counts = Mapping[str, int] | None
Write = Callable[[GatheredRows, Written], Counts]
"""Writes these rows by key, as a batch of their own."""

_REFUSED_BY_ANOTHER = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation)


def write_in_order_in_tx(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, write: Write
) -> Counts:
    """
    Write the rows: at once if the table takes them so, else in their order.

    :raises RowsRefusedError: for rows that a constraint refuses in their turn; the transaction holds the others.
    :raises TargetError: UNIQUE_VALUE_MOVED, DELETE_ACTION, if the order of the changes matters and is not known.
    """
    if deletes_act_on_itself(written.table, written.changes):
        in_order = _InOrder(connection, gathered, written, write)
        return in_order.written(in_order.of_one_kind())
    try:
        return write(gathered, written)
    except (*_REFUSED_BY_ANOTHER, StillReferredToError) as error:
        try:
            # Released, because an error of another table of the batch would go back to it, and undo what is written.
            connection.execute(sql.SQL("; ").join([BACK, RELEASE]))
            is_ours = is_of_target(connection, written.table, error)
            ordered = _InOrder(connection, gathered, written, write) if is_ours else None
        except (psycopg.errors.InvalidSavepointSpecification, psycopg.errors.InsufficientPrivilege):
            # All rows had been written. Or the role may make no temporary table.
            raise error from None
        if ordered is None:
            raise
        if isinstance(error, StillReferredToError):
            return _written_by_kind(ordered, error)
        return ordered.written([range(len(ordered.turns))])


def _written_by_kind(ordered: _InOrder, error: StillReferredToError) -> Counts:
    """Write deletes and writes in their order, or raise ``error`` if that is not known, or if it is not the reason."""
    try:
        parts = ordered.of_one_kind()
    except TargetError:
        raise error from None
    if len(parts) < 2:  # noqa: PLR2004 (all at once, as before)
        raise error
    try:
        return ordered.written(parts)
    except psycopg.errors.ForeignKeyViolation:
        # The first one, because rows in parts may also lack a parent that comes in a later part.
        raise error from None


_Part = Sequence[int]
"""The numbers of rows, in their order: a range, or an array of some of a range."""


class _InOrder:
    """The gathered rows, numbered: ``turns[n]`` is the place of row ``n`` in the order, equal for those that tie."""

    def __init__(self, connection: psycopg.Connection, gathered: GatheredRows, written: Written, write: Write) -> None:
        self._connection = connection
        self._gathered = gathered
        self._write = write
        self._table = sql.Identifier("pg_temp", f"pgonce_turns_{next(_counter)}")
        _, compared = compare_in_tx(connection, written.table, written.by_key, sql.SQL("SELECT"))
        connection.execute(RELEASE)
        # So no part has to ask the table again.
        self._written = replace(written, upsert=compared)
        connection.execute(_numbered(self._table, gathered, written, compared), prepare=False)
        # Of a million rows, lists of Python's numbers would take a hundred times as much memory.
        self.turns = array("q", (turn for (turn,) in self._selected("turn")))

    def of_one_kind(self) -> Sequence[_Part]:
        """
        Parts in which all rows delete, or all write, and in which no key comes twice.

        :raises TargetError: DELETE_ACTION, if rows of one turn are of both kinds.
        """
        starts, is_deletes = [0], None
        for number, (deletes, before) in enumerate(self._selected("deletes, before")):
            turn = self.turns[number]
            if is_deletes is not None and deletes != is_deletes:
                if turn == self.turns[number - 1]:
                    raise self._tied()
                starts.append(number)
            elif before is not None and self.turns[starts[-1]] <= before < turn:
                # Rows of one turn are not separated.
                starts.append(bisect_left(self.turns, turn))
            is_deletes = deletes
        ends = [*starts[1:], len(self.turns)]
        return [range(start, end) for start, end in zip(starts, ends, strict=True) if start < end]

    def written(self, parts: Sequence[_Part]) -> Counts:
        """Write the parts one after the other; what became of their rows."""
        counts: Counts = None
        bad: list[tuple[psycopg.Error, BadRow]] = []
        waiting = list(reversed(parts))
        while waiting and len(bad) < self._written.most_bad:
            part = waiting.pop()
            try:
                with self._connection.transaction():
                    of_part = self._write(self._rows(part), self._written)
            except _REFUSED_BY_ANOTHER as error:
                if not is_of_target(self._connection, self._written.table, error):
                    raise
                if len(part) == 1:
                    bad.append((error, refused_by(error, self._place(part[0]), is_proven=True)))
                else:
                    waiting += reversed(self._smaller(part, error))
            else:
                counts = of_part if counts is None else {**counts, **_added(counts, of_part or {})}
        if bad:
            raise RowsRefusedError(bad[0][0], [row for _, row in bad])
        return counts

    def _smaller(self, part: _Part, error: psycopg.Error) -> list[_Part]:
        """
        The parts of one that is refused, as they are written next.

        :raises TargetError: UNIQUE_VALUE_MOVED.
        """
        rows, index = self._rows(part), unique_index(self._connection, self._written, error)
        if not _may_have_moved(self._connection, rows, self._written, index):
            # Then the order only decides which of several rows with one value comes first.
            doubled = frozenset() if index is None or self._has_a_key_twice(part) else self._doubled(rows, index)
            if 0 < len(doubled) < len(part):
                return [array("q", (n for n in part if n not in doubled)), *(range(n, n + 1) for n in sorted(doubled))]
        elif self.turns[part[0]] == self.turns[part[-1]]:
            raise _moved(error, self._written) from None
        middle = self._middle(part)
        return [part[:middle], part[middle:]]

    def _middle(self, part: _Part) -> int:
        """Where a part is halved: between two turns, or in its only one."""
        middle = len(part) // 2
        turn = self.turns[part[middle]]
        first = bisect_left(part, turn, key=self.turns.__getitem__)
        after = bisect_right(part, turn, key=self.turns.__getitem__)
        return first or (after if after < len(part) else middle)

    def _has_a_key_twice(self, part: _Part) -> bool:
        found = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {} AND before OPERATOR(pg_catalog.>=) {})").format(
            self._table, _numbers(part), self.turns[part[0]]
        )
        row = self._connection.execute(found).fetchone()
        return bool(row and row[0])

    def _doubled(self, rows: GatheredRows, index: UniqueIndex) -> frozenset[int]:
        """The numbers of the rows that seem to have a value of a stored row, or of one before them."""
        number = sql.SQL("(SELECT turn.number FROM {} AS turn WHERE turn.place = valued.{})").format(self._table, PLACE)
        find = sql.SQL("SELECT turn.number FROM ({}) AS found JOIN {} AS turn USING (place)").format(
            index.doubled(rows, number), self._table
        )
        return frozenset(number - 1 for (number,) in guessed(self._connection, find) or ())

    def _selected(self, columns: LiteralString) -> psycopg.Cursor[Any]:
        return self._connection.execute(
            sql.SQL("SELECT {} FROM {} ORDER BY number").format(sql.SQL(columns), self._table)
        )

    def _place(self, number: int) -> str:
        place = sql.SQL("SELECT place::pg_catalog.text FROM {} WHERE number OPERATOR(pg_catalog.=) {}")
        row = self._connection.execute(place.format(self._table, number + 1)).fetchone()
        if row is None:
            raise LookupError("a row of the batch is not among those that were numbered")
        return row[0]

    def _rows(self, part: _Part) -> GatheredRows:
        places = sql.SQL("SELECT place FROM {} WHERE {}").format(self._table, _numbers(part))
        return self._gathered.only(sql.SQL("ctid OPERATOR(pg_catalog.=) ANY (ARRAY({}))").format(places))

    def _tied(self) -> TargetError:
        return delete_action(
            f"Deleting rows of {self._written.table.qualified_name} changes other rows of it, by a foreign key with "
            "an action, and the batch has a delete and a write with the same value of orderBy: it is unknown "
            "whether a row had moved to another parent before its parent was deleted.",
            "Set orderBy to a column whose value is different for each change. Or let",
        )


def _numbers(part: _Part) -> sql.Composable:
    """The condition that picks the rows of a part, which the table counts from 1."""
    if isinstance(part, range):
        between = "number OPERATOR(pg_catalog.>=) {} AND number OPERATOR(pg_catalog.<=) {}"
        return sql.SQL(between).format(part.start + 1, part.stop)
    return sql.SQL("number OPERATOR(pg_catalog.=) ANY ({}::pg_catalog.int8[])").format([n + 1 for n in part])


def _added(counts: Mapping[str, int], more: Mapping[str, int]) -> dict[str, int]:
    return {name: counts.get(name, 0) + number for name, number in more.items()}


def _numbered(table: sql.Identifier, gathered: GatheredRows, written: Written, upsert: ComparedUpsert) -> sql.Composed:
    """The statement that numbers the rows; ``before`` is the turn in which the row's key comes before."""
    order = value_as_assigned(upsert.order_by, upsert) if upsert.order_by else sql.SQL("1")
    keys = sql.SQL(", ").join(
        sql.SQL("{} AS {}").format(value_as_assigned(key, upsert), sql.Identifier(f"key_{n}"))
        for n, key in enumerate(upsert.keys)
    )
    names = sql.SQL(", ").join(sql.Identifier(f"key_{n}") for n, _ in enumerate(upsert.keys))
    # A row that moved is deleted before it is written.
    deletes = sql.SQL("({} OR {})").format(
        sql.Identifier(written.changes.deleted) if written.changes else sql.SQL("false"),
        MovedRows(written.columns, upsert).is_moved,
    )
    # A version of a table that deletes a row and inserts it again has replaced it.
    has_versions = written.changes is not None and written.changes.has_versions
    in_order = sql.SQL("turn, deletes DESC, place" if has_versions else "turn, place")
    return sql.SQL(
        "CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS SELECT *, "
        "pg_catalog.row_number() OVER (ORDER BY {in_order}) AS number, "
        "pg_catalog.lag(turn) OVER (PARTITION BY {names} ORDER BY {in_order}) AS before FROM ("
        "SELECT ctid AS place, pg_catalog.dense_rank() OVER (ORDER BY {order} NULLS FIRST) AS turn, "
        "{deletes} AS deletes, {keys} FROM {source} WHERE {wanted}) AS s; "
        "CREATE INDEX ON {table} (number); CREATE INDEX ON {table} (place)"
    ).format(
        table=table,
        in_order=in_order,
        names=names,
        order=order,
        deletes=deletes,
        keys=keys,
        source=gathered.source,
        wanted=gathered.wanted,
    )
