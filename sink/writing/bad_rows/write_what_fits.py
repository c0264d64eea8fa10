"""
Write the rows of a batch without those that cannot be written, and put these aside.

Runs in the commit. Invariant: the whole batch is tried first. In the end one statement writes all rows but those that
are put aside, and the table as that statement leaves it refuses each of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres import search_path

from ...staging import check_staged_rows
from ..bad_row import (
    EXCLUSION,
    UNIQUE,
    BadRow,
    RowsRefusedError,
    SearchBound,
    may_be_a_rows,
    of_one,
    refuse_too_many,
    refused_by,
    without,
)
from ..by_key.keys import Written
from ..rows import GatheredRows, whole_or_failed
from ..table.catalogue import TargetTable
from .refused_values import note_gathered
from .search import Attempt, Search


class Constraints:
    """
    The deferred constraints of a table: they are checked after the rows are written, while the transaction can still go
    back.

    Not where other tables of the transaction are still to be written, because a child may come before its parent.
    """

    def __init__(self, connection: psycopg.Connection, table: TargetTable, *, is_last: bool) -> None:
        self._connection = connection
        find = sql.SQL(_DEFERRED if is_last else "SELECT WHERE false").format(oid=table.oid)
        cursor = connection.cursor()
        # In one round trip with the savepoint for going back.
        cursor.execute(sql.SQL("SAVEPOINT pgonce_letters; {}").format(search_path.under_ours(find)), prepare=False)
        for _ in range(1 + search_path.ANSWERS_BEFORE):
            cursor.nextset()
        self._names = [sql.Identifier(*row) for row in cursor.fetchall()]

    @property
    def statement(self) -> sql.Composed:
        """What checks them; empty if there are none."""
        names = sql.SQL(", ").join(self._names)
        return sql.SQL("SET CONSTRAINTS {} IMMEDIATE").format(names) if self._names else sql.Composed([])

    def check(self) -> None:
        """:raises psycopg.errors.IntegrityError: if one of them is broken."""
        if self._names:
            self._connection.execute(self.statement)


_DEFERRED = """
SELECT n.nspname, c.conname FROM pg_constraint AS c JOIN pg_namespace AS n ON n.oid = c.connamespace
WHERE c.condeferred AND c.conrelid IN (SELECT {oid} UNION ALL SELECT relid FROM pg_partition_tree({oid}))
"""


@dataclass
class _Aside:
    """The rows that are left out so far, by their places, and those that were given another chance."""

    rows: dict[str, BadRow] = field(default_factory=dict)
    returned: set[str] = field(default_factory=set)


def write_what_fits_in_tx(
    connection: psycopg.Connection,
    gathered: GatheredRows,
    written: Written,
    attempt: Attempt,
    constraints: Constraints,
    most: int,
    error: Exception | None = None,
) -> tuple[Mapping[str, int] | None, list[BadRow]]:
    """
    Write the rows that the table takes, and return their counts and the others.

    :param attempt: writes gathered rows and checks ``constraints``, which were made since the rows were gathered.
    :param error: Postgres's refusal of the whole batch, if that was tried.
    :raises TargetError: TOO_MANY_DEAD_LETTERS, SEARCH_TOO_LONG; and if no batch at all can be written.
    :raises psycopg.Error: what Postgres says that is not about the values of a row.
    """
    if error is None:
        try:
            return attempt(gathered), []
        except (psycopg.Error, TargetError, RowsRefusedError) as refused:
            if not may_be_a_rows(refused):
                if isinstance(refused, psycopg.Error):
                    note_gathered(connection, refused, written, gathered)
                raise
            error = refused
    with whole_or_failed(connection):
        go_back(connection)
        if gathered.staged is not None:
            check_staged_rows(connection, gathered.staged)
        why = of_one(refused_by(error, "")) if isinstance(error, psycopg.Error) else ""
        bound = SearchBound(written.table.qualified_name, why)
        search = Search(connection, written, attempt, constraints.statement, most, bound)
        return _written_without(search, replace(gathered, staged=None), error)


def _written_without(
    search: Search, gathered: GatheredRows, error: Exception | None
) -> tuple[Mapping[str, int] | None, list[BadRow]]:
    connection, table, aside = search.connection, search.written.table, _Aside()
    while True:
        if error is not None:
            _put_aside(search, aside, error, gathered.only(without(aside.rows)))
        rest = gathered.only(without(aside.rows))
        try:
            counts = search.attempt(rest)
        except (psycopg.Error, TargetError, RowsRefusedError) as refused:
            if not may_be_a_rows(refused):
                raise
            go_back(connection)
            error = refused
            continue
        fit = _that_fit_now(search, aside, gathered)
        if not fit:
            refuse_too_many(table, aside.rows.values(), search.most)
            return counts, list(aside.rows.values())
        go_back(connection)
        aside.returned.update(fit)
        for place in fit:
            del aside.rows[place]
        error = None


def _put_aside(search: Search, aside: _Aside, error: Exception, gathered: GatheredRows) -> None:
    """Add the rows that caused ``error``."""
    found = search.bad_rows(error, gathered)
    of_rows = error.error if isinstance(error, RowsRefusedError) else error
    if any(row.place in aside.returned for row in found):
        # It can follow the others, but they cannot follow it: an older change of a key is passed over once the newer
        # one is there, and yet gives the inserted row its values. So the search writes them in turn until one fails.
        found = [replace(row, is_proven=row.place in aside.returned) for row in search.first_refused(of_rows, gathered)]
    if not found:
        # No row was found.
        raise of_rows
    for place, row in aside.rows.items():
        if row.code in (UNIQUE, EXCLUSION):
            # It may have been refused because of a row that is put aside now.
            aside.rows[place] = replace(row, is_proven=False)
    aside.rows.update((row.place, row) for row in found)
    refuse_too_many(search.written.table, (row for row in aside.rows.values() if row.is_proven), search.most)


def _that_fit_now(search: Search, aside: _Aside, gathered: GatheredRows) -> list[str]:
    """The rows that can be added to what is written now. For the others it notes why they cannot."""
    guessed = {row.place: row for row in aside.rows.values() if not row.is_proven}
    for row in search.refused_now(list(guessed.values()), gathered):
        guess = guessed.pop(row.place)
        aside.rows[row.place] = replace(row, column_name=row.column_name or guess.column_name)
    return list(guessed)


def go_back(connection: psycopg.Connection) -> None:
    """Undo what was written since :class:`Constraints` was made."""
    connection.execute("ROLLBACK TO SAVEPOINT pgonce_letters")
