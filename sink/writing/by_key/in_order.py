"""
Write rows by key in the order of their changes, where one statement for all of them cannot.

Runs in the commit. Invariant: what is left is what the changes would leave one by one, and no row is called bad that
fits in its turn.

Two batches need this:

- one that a unique or an exclusion constraint refuses: a value may have moved from one row to another, and one
  statement writes rows in the order of their keys;
- one that deletes rows of a table whose foreign keys to itself have actions: all deletes come before all writes, so a
  row that has moved away from its parent would go with it.

The rows are numbered in the order of ``orderBy`` and written in parts, each as a batch is. A part that is refused is
halved, down to the row that is refused in its turn. Rows without an order stay in one part, and the batch is refused if
a value may have moved among them.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from typing_extensions import LiteralString

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.postgres import search_path

from ..bad_row import BadRow, RowsRefusedError, is_of_target, refused_by, unique_columns
from ..checked_table import ColumnPlan
from ..rows import BACK, GatheredRows
from .keys import ComparedUpsert, Written, delete_action, deletes_act_on_itself
from .statements import that_write, value_as_assigned, value_of
from .upsert import compare_in_tx

_counter = itertools.count()


def refuse_moved_values(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, error: psycopg.Error
) -> None:
    """
    Refuse the rows if a stored row has a value that ``error`` says is there, and they may take it away from that row.

    :raises TargetError: UNIQUE_VALUE_MOVED.
    """
    name, table = error.diag.constraint_name, written.table.qualified_name
    if _may_have_moved(connection, gathered, written, error):
        raise TargetError(
            "UNIQUE_VALUE_MOVED",
            f"Constraint or index {name!r} of {table} refuses the batch. In this batch, a value may have moved from "
            "one row to another, and orderBy does not tell which of the two changes came first.",
            NOTHING,
            f"Set orderBy to a column whose value is different for each change. Or drop {name!r} and add it again "
            "as a constraint that is DEFERRABLE INITIALLY DEFERRED: it is then checked when all rows are there. If "
            "no value has moved, the batch has a row whose value belongs to another row: remove it in Spark.",
        ) from None


def _may_have_moved(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, error: psycopg.Error
) -> bool:
    if written.upsert is None:
        return False
    names = unique_columns(connection, error)
    plan = {column.target: column for column in written.plan}
    keys = [key.target for key in written.upsert.keys]
    # Only a stored row that the batch changes can give a value away.
    stored = sql.SQL("{table} AS target JOIN ({given}) AS given ON {same_key}").format(
        table=written.table.identifier,
        given=_selected(gathered, plan, keys),
        same_key=_equal(keys, "target", "given"),
    )
    if names and plan.keys() >= set(names):
        writes = gathered.only(that_write(written.changes)) if written.changes else gathered
        query = sql.SQL("{stored} JOIN ({rows}) AS s ON {same_value} WHERE NOT ({same_key})").format(
            stored=stored,
            rows=_selected(writes, plan, list({*names, *keys})),
            same_value=_equal(names, "target", "s"),
            same_key=_equal(keys, "target", "s"),
        )
    else:
        # An exclusion constraint, an index on an expression or with a condition, or a column with a default.
        query = stored
    try:
        with connection.transaction():
            exists = sql.SQL("SELECT EXISTS (SELECT FROM {})").format(query)
            row = search_path.execute_in_tx(connection, exists).fetchone()
    except (psycopg.errors.DataError, psycopg.errors.ProgrammingError):
        # Types without an equality of Postgres's own; a table that the role may not read.
        return True
    return bool(row and row[0])


def _selected(gathered: GatheredRows, plan: Mapping[str, ColumnPlan], names: Sequence[str]) -> sql.Composed:
    values = (sql.SQL("{} AS {}").format(value_of(plan[name]), sql.Identifier(name)) for name in names)
    return sql.SQL("SELECT {} FROM {} WHERE {}").format(sql.SQL(", ").join(values), gathered.source, gathered.wanted)


def _equal(names: Sequence[str], left: str, right: str) -> sql.Composable:
    same = sql.SQL("{} = {}")
    return sql.SQL(" AND ").join(same.format(sql.Identifier(left, name), sql.Identifier(right, name)) for name in names)


Counts = Mapping[str, int] | None
Write = Callable[[GatheredRows], Counts]
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
        return write(gathered)
    except _REFUSED_BY_ANOTHER as error:
        try:
            connection.execute(BACK)
            is_ours = is_of_target(connection, written.table, error)
            ordered = _InOrder(connection, gathered, written, write) if is_ours else None
        except (psycopg.errors.InvalidSavepointSpecification, psycopg.errors.InsufficientPrivilege):
            # All rows had been written, and only soft deletes were left. Or the role may make no temporary table.
            raise error from None
        if ordered is None:
            raise
        return ordered.written([_Part(0, len(ordered.turns))])


@dataclass(frozen=True)
class _Part:
    """The rows from number ``start`` to before number ``end``."""

    start: int
    end: int


class _InOrder:
    """The gathered rows, numbered: ``turns[n]`` is the place of row ``n`` in the order, equal for those that tie."""

    def __init__(self, connection: psycopg.Connection, gathered: GatheredRows, written: Written, write: Write) -> None:
        self._connection = connection
        self._gathered = gathered
        self._written = written
        self._write = write
        self._table = sql.Identifier("pg_temp", f"pgonce_turns_{next(_counter)}")
        _, compared = compare_in_tx(connection, written.table, written.by_key, sql.SQL("SELECT"))
        connection.execute(_numbered(self._table, gathered, written, compared), prepare=False)
        # Of a million rows, lists of Python's numbers would take a hundred times as much memory.
        self.turns = array("q", (turn for (turn,) in self._selected("turn")))

    def of_one_kind(self) -> list[_Part]:
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
        return [_Part(start, end) for start, end in zip(starts, ends, strict=True) if start < end]

    def written(self, parts: list[_Part]) -> Counts:
        """Write the parts one after the other; what became of their rows."""
        counts: Counts = None
        bad: list[tuple[psycopg.Error, BadRow]] = []
        waiting = parts[::-1]
        while waiting and len(bad) < self._written.most_bad:
            part = waiting.pop()
            try:
                with self._connection.transaction():
                    of_part = self._write(self._rows(part))
            except _REFUSED_BY_ANOTHER as error:
                if not is_of_target(self._connection, self._written.table, error):
                    raise
                if part.end - part.start == 1:
                    bad.append((error, refused_by(error, self._place(part.start), is_proven=True)))
                else:
                    middle = self._middle(part, error)
                    waiting += [_Part(middle, part.end), _Part(part.start, middle)]
            else:
                counts = of_part if counts is None else {**counts, **_added(counts, of_part or {})}
        if bad:
            raise RowsRefusedError(bad[0][0], [row for _, row in bad])
        return counts

    def _middle(self, part: _Part, error: psycopg.Error) -> int:
        """Where a part that is refused is halved: between two turns, or in a turn in which no value can have moved."""
        middle = (part.start + part.end) // 2
        turn = self.turns[middle]
        first, after = bisect_left(self.turns, turn), bisect_right(self.turns, turn)
        if first > part.start:
            return first
        if after < part.end:
            return after
        refuse_moved_values(self._connection, self._rows(part), self._written, error)
        return middle

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
        numbers = sql.SQL(
            "SELECT place FROM {} WHERE number OPERATOR(pg_catalog.>=) {} AND number OPERATOR(pg_catalog.<=) {}"
        )
        places = numbers.format(self._table, part.start + 1, part.end)
        return self._gathered.only(sql.SQL("ctid OPERATOR(pg_catalog.=) ANY (ARRAY({}))").format(places))

    def _tied(self) -> TargetError:
        return delete_action(
            f"Deleting rows of {self._written.table.qualified_name} changes other rows of it, by a foreign key with "
            "an action, and the batch has a delete and a write with the same value of orderBy: it is unknown "
            "whether a row had moved to another parent before its parent was deleted.",
            "Set orderBy to a column whose value is different for each change. Or let",
        )


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
    deletes = sql.Identifier(written.changes.deleted) if written.changes else sql.SQL("false")
    return sql.SQL(
        "CREATE TEMPORARY TABLE {table} ON COMMIT DROP AS SELECT *, "
        "pg_catalog.row_number() OVER (ORDER BY turn, place) AS number, "
        "pg_catalog.lag(turn) OVER (PARTITION BY {names} ORDER BY turn, place) AS before FROM ("
        "SELECT ctid AS place, pg_catalog.dense_rank() OVER (ORDER BY {order} NULLS FIRST) AS turn, "
        "{deletes} AS deletes, {keys} FROM {source} WHERE {wanted}) AS s; CREATE INDEX ON {table} (number)"
    ).format(
        table=table,
        names=names,
        order=order,
        deletes=deletes,
        keys=keys,
        source=gathered.source,
        wanted=gathered.wanted,
    )
