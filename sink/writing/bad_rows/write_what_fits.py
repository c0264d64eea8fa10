"""
Write the rows of a batch without those that cannot be written, and put these aside.

Runs in the commit. Invariant: the whole batch is tried first. If Postgres refuses it for a row's sake, its rows are
written in their turn (:mod:`~pgonce.sink.writing.bad_rows.in_turn`), and the table as it stands in the end refuses each
row that is put aside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres import search_path

from ...staging import check_staged_rows
from ..bad_row import (
    BadRow,
    Kind,
    RowsRefusedError,
    SearchBound,
    kind_of,
    may_be_a_rows,
    names_of,
    of_one,
    refused_by,
)
from ..by_key.keys import Written, deletes_act_on_itself
from ..by_key.write_changes import StillReferredToError
from ..rows import BACK, RELEASE, GatheredRows, whole_or_failed
from ..table.catalogue import TargetTable
from .in_turn import InTurn
from .refused_values import note_gathered

Counts = Mapping[str, int] | None
Attempt = Callable[[GatheredRows], Counts]
"""Writes rows into the target."""


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
        self.names = [sql.Identifier(*row) for row in cursor.fetchall()]

    def check(self) -> None:
        """:raises psycopg.errors.IntegrityError: if one of them is broken."""
        if self.names:
            names = sql.SQL(", ").join(self.names)
            self._connection.execute(sql.SQL("SET CONSTRAINTS {} IMMEDIATE").format(names))


_DEFERRED = """
SELECT n.nspname, c.conname FROM pg_constraint AS c JOIN pg_namespace AS n ON n.oid = c.connamespace
WHERE c.condeferred AND c.conrelid IN (SELECT {oid} UNION ALL SELECT relid FROM pg_partition_tree({oid}))
"""


def write_what_fits_in_tx(
    connection: psycopg.Connection,
    gathered: GatheredRows,
    written: Written,
    attempt: Attempt,
    constraints: Constraints,
    most: int,
    error: Exception | None = None,
) -> tuple[Counts, list[BadRow]]:
    """
    Write the rows that the table takes, and return their counts and the others.

    :param attempt: writes gathered rows and checks ``constraints``, which were made since the rows were gathered.
    :param error: Postgres's refusal of the whole batch, if that was tried.
    :raises TargetError: TOO_MANY_DEAD_LETTERS, SEARCH_TOO_LONG; and if no batch at all can be written.
    :raises psycopg.Error: what Postgres says that is not about the values of a row.
    """
    if error is None and not must_take_turns(connection, gathered, written):
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
        names = names_of(connection, written.table)
        why = ""
        if isinstance(error, psycopg.Error):
            if kind_of(error) is Kind.CONSTRAINT and not names.of_error(error):
                raise error
            why = of_one(refused_by(error))
        bound = SearchBound(written.table.qualified_name, why)
        in_turn = InTurn(connection, written, names, bound, most, constraints.names)
        in_turn.begin_in_tx(instead=error)
        counts = in_turn.write_in_tx(replace(gathered, staged=None))
        constraints.check()
        return counts, in_turn.refused


def must_take_turns(connection: psycopg.Connection, gathered: GatheredRows, written: Written) -> bool:
    """Whether a delete of the batch may change other rows that it writes, so that their order says what is left."""
    if written.changes is None or not deletes_act_on_itself(written.table, written.changes):
        return False
    deletes = gathered.only(sql.SQL("{} IS TRUE").format(sql.Identifier(written.changes.deleted)))
    found = sql.SQL("SELECT FROM {} WHERE {} LIMIT 1").format(deletes.source, deletes.wanted)
    return connection.execute(found, prepare=False).fetchone() is not None


_BY_ANOTHER = (psycopg.errors.UniqueViolation, psycopg.errors.ExclusionViolation, StillReferredToError)


def may_fit_in_turn(connection: psycopg.Connection, error: psycopg.Error, written: Written) -> bool:
    """
    Whether rows that ``error`` refuses may fit in their turn: a value may have moved from one of them to another, or a
    row may have left its parent before that is deleted. If so, the transaction is as it was before the rows.
    """
    if written.upsert is None or not isinstance(error, _BY_ANOTHER):
        return False
    try:
        # Released, because an error of another table of the batch would go back to it, and undo what is written.
        connection.execute(sql.SQL("; ").join([BACK, RELEASE]))
    except psycopg.errors.InvalidSavepointSpecification:
        # All rows had been written.
        return False
    return names_of(connection, written.table).of_error(error)


def write_all_in_turn_in_tx(
    connection: psycopg.Connection, gathered: GatheredRows, written: Written, error: psycopg.Error | None
) -> Counts:
    """
    Write all rows in their turn.

    :param error: Postgres's refusal of the whole batch, if that was tried.
    :raises psycopg.Error: what Postgres says of a row that it refuses in its turn.
    """
    if gathered.staged is not None:
        check_staged_rows(connection, gathered.staged)
    in_turn = InTurn(
        connection, written, names_of(connection, written.table), SearchBound(written.table.qualified_name)
    )
    in_turn.begin_in_tx(instead=error)
    return in_turn.write_all_in_tx(replace(gathered, staged=None))


def go_back(connection: psycopg.Connection) -> None:
    """Undo what was written since :class:`Constraints` was made."""
    connection.execute("ROLLBACK TO SAVEPOINT pgonce_letters")
