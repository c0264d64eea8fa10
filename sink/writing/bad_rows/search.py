"""
Search gathered rows for those that may be the reason why Postgres refused a statement.

Runs in the commit, after the refused statement was rolled back. Invariant: a row is put aside only if Postgres was seen
to refuse it, or refuses it when it is tried by itself; if no such row is found, the batch is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NullOrderError, TargetError

from ..bad_row import (
    EXCLUSION,
    UNIQUE,
    BadRow,
    Kind,
    RowsRefusedError,
    SearchBound,
    after,
    at,
    is_for_itself,
    is_of_target,
    kind_of,
    may_be_a_rows,
    refused_by,
    up_to,
)
from ..by_key.in_order import refuse_moved_values
from ..by_key.keys import Written
from ..by_key.statements import lacks_order
from ..rows import GatheredRows
from .conflicts import conflicting_rows, refused_in_turn, skipped_rows
from .probe import refused_rows

# A constraint is deferrable, or the table has a rule.
_NO_ON_CONFLICT = (psycopg.errors.ObjectNotInPrerequisiteState, psycopg.errors.FeatureNotSupported)
# The target may only be written to, or has a CHECK that looks at whole rows, which LIKE does not take; or PL/pgSQL was
# dropped.
_NO_PROBE = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.FeatureNotSupported,
    psycopg.errors.UndefinedObject,
)

Attempt = Callable[[GatheredRows], Mapping[str, int] | None]
"""Writes rows into the target."""


@dataclass(frozen=True)
class Search:
    """
    The search for bad rows in a batch; at most ``most`` may be bad.

    ``attempt`` writes some of them, and then ``checks`` what is deferred.
    """

    connection: psycopg.Connection
    written: Written
    attempt: Attempt
    checks: sql.Composable
    most: int
    bound: SearchBound

    def bad_rows(self, error: Exception, gathered: GatheredRows) -> list[BadRow]:
        """
        The rows that may have caused ``error``, in the order of their places; empty if none is found.

        :raises TargetError: SEARCH_TOO_LONG, UNIQUE_VALUE_MOVED.
        """
        self.bound.refuse_longer()
        if isinstance(error, RowsRefusedError):
            return list(error.rows)
        if isinstance(error, TargetError):
            return self._lacking(error, gathered)
        if not isinstance(error, psycopg.Error):
            return []
        kind = kind_of(error)
        if kind is Kind.CONSTRAINT and not is_of_target(self.connection, self.written.table, error):
            return []
        found: list[BadRow] = []
        if is_for_itself(error):
            with suppress(*_NO_PROBE):
                found = refused_rows(self.connection, gathered, self.written, self.most, self.bound)
        else:
            found = self._conflicting(error, gathered)
        if found or kind is Kind.VALUE:
            # If no type of the target refuses a value, the error is about something else.
            return found
        return self._refused_in_turn(error, gathered) or self.first_refused(error, gathered)

    def _conflicting(self, error: psycopg.Error, gathered: GatheredRows) -> list[BadRow]:
        """The rows that seem to conflict with others, or to have no parent."""
        enough = self.most + 1
        if error.sqlstate in (UNIQUE, EXCLUSION):
            if self.written.upsert is not None:
                # A deferred constraint, checked when all rows are written: by halves, a row may come too early.
                refuse_moved_values(self.connection, gathered, self.written, error)
                return conflicting_rows(self.connection, error, gathered, self.written, enough)
            try:
                found = skipped_rows(self.connection, error, gathered, self.written, enough)
                if len(found) < enough:
                    return found
                # Too many are bad, or a trigger leaves rows out that are good.
            except _NO_ON_CONFLICT:
                pass
            except psycopg.Error as other:
                if not may_be_a_rows(other):
                    raise
                if other.sqlstate not in (UNIQUE, EXCLUSION):
                    # Rows of both kinds are in the batch. Without these, the others are found.
                    return self.bad_rows(other, gathered)
        return conflicting_rows(self.connection, error, gathered, self.written, enough)

    def refused_now(self, rows: Sequence[BadRow], gathered: GatheredRows) -> list[BadRow]:
        """
        Those of ``rows`` that Postgres refuses to add to what is written by now, each after those that fit.

        :raises TargetError: SEARCH_TOO_LONG.
        """
        some = gathered.only(at(*(row.place for row in rows)))
        refused = refused_in_turn(self.connection, some, self.written, self.checks, self.bound) if rows else []
        if refused is not None:
            return refused
        refused = []
        fit: list[str] = []
        for row in rows:
            # Together, because two rows may each fit by themselves, and not together.
            error = self.refusal(gathered.only(at(*fit, row.place)))
            if error is None:
                fit.append(row.place)
            else:
                refused.append(refused_by(error, row.place))
        return refused

    def refusal(self, gathered: GatheredRows, *, is_kept: bool = False) -> psycopg.Error | TargetError | None:
        """
        The error with which Postgres refuses to add these rows to those that are there; None if it does not.

        :param is_kept: whether the rows stay, if Postgres takes them.
        :raises TargetError: SEARCH_TOO_LONG.
        """
        self.bound.refuse_longer()
        try:
            with self.connection.transaction() as tried:
                self.attempt(gathered)
                if not is_kept:
                    raise psycopg.Rollback(tried)
        except RowsRefusedError as refused:
            return refused.error
        except psycopg.Error as error:
            if not may_be_a_rows(error):
                raise
            return error
        return None

    def _lacking(self, error: TargetError, gathered: GatheredRows) -> list[BadRow]:
        """The rows that have NULL where none may be."""
        upsert = self.written.upsert
        if upsert is None:
            return []
        is_order = isinstance(error, NullOrderError) and upsert.order_by
        found = []
        for column in [upsert.order_by] if is_order and upsert.order_by else upsert.keys:
            is_null: sql.Composable = sql.SQL("{} IS NULL").format(sql.Identifier(column.source))
            if is_order:
                is_null = lacks_order(upsert, self.written.columns)
            for place in self._places(gathered.only(is_null), self.most + 1):
                message = f"The row has NULL in {column.source!r}."
                found.append(BadRow(place, error.code, message, column.target, is_proven=True))
        return found

    def _refused_in_turn(self, error: psycopg.Error | TargetError, gathered: GatheredRows) -> list[BadRow]:
        """The rows that are refused once those before them are written; if they are too many, some of them."""
        refused = refused_in_turn(self.connection, gathered, self.written, self.checks, self.bound, self.most)
        if refused is not None:
            return refused
        found: list[BadRow] = []
        with self.connection.transaction() as all_of_it:
            for row in self._in_halves(error, gathered, self._count(gathered)):
                found.append(row)
                if len(found) > self.most:
                    break
            raise psycopg.Rollback(all_of_it)
        return found

    def _in_halves(self, error: psycopg.Error | TargetError, rows: GatheredRows, count: int) -> Iterator[BadRow]:
        """The bad ones of ``count`` rows that are refused together, after those that are written so far."""
        if count <= 1:
            yield from (refused_by(error, place) for place in self._places(rows, 1))
            return
        half = count // 2
        (place,) = self._places(rows, 1, behind=half - 1)
        # What fits stays: with it, the next rows need not be written again and again.
        for part, number in ((rows.only(up_to(place)), half), (rows.only(after(place)), count - half)):
            self.bound.refuse_longer(1)
            refused = self.refusal(part, is_kept=True)
            if refused is not None:
                yield from self._in_halves(refused, part, number)

    def first_refused(self, error: Exception, gathered: GatheredRows) -> list[BadRow]:
        """The first row with which writing the rows up to it fails, found by halves."""
        if not isinstance(error, (psycopg.Error, TargetError)):
            return []
        fits, fails = 0, self._count(gathered)
        while fails - fits > 1:
            middle = (fits + fails) // 2
            (place,) = self._places(gathered, 1, behind=middle - 1)
            self.bound.refuse_longer(1)
            refused = self.refusal(gathered.only(up_to(place)))
            if refused is None:
                fits = middle
            else:
                fails, error = middle, refused
        places = self._places(gathered, 1, behind=fails - 1) if fails else []
        return [refused_by(error, place) for place in places]

    def _count(self, rows: GatheredRows) -> int:
        row = self.connection.execute(
            sql.SQL("SELECT pg_catalog.count(*) FROM {} WHERE {}").format(rows.source, rows.wanted), prepare=False
        ).fetchone()
        return row[0] if row else 0

    def _places(self, rows: GatheredRows, limit: int, behind: int = 0) -> list[str]:
        # Without a name of its own the text would be called ctid, and ORDER BY would sort by it: (10,1) before (9,1).
        find = sql.SQL("SELECT ctid::pg_catalog.text AS place FROM {} WHERE {} ORDER BY ctid LIMIT {} OFFSET {}")
        found = self.connection.execute(find.format(rows.source, rows.wanted, limit, behind), prepare=False)
        return [row[0] for row in found.fetchall()]
