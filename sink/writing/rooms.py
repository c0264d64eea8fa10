"""
What only some options need: the core is handed it here, and imports none of it.

Runs wherever rows are read, looked at and written. Invariant: a room is asked for only where an option needs it, so
that a process without that option never loads the room's code. A module is handed over as it is: what stands here is
what the core calls of it, and mypy compares the two.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ..read_rows import Readers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import psycopg

    from pgonce.offsets_store.ledger.published import WrittenAs
    from pgonce.offsets_store.verdict.facts import Batch

    from ..encoding.encoded_types import EncodedColumn
    from ..options.destination import Changes, Destination
    from ..options.routes import Routes
    from .checked_table import ColumnPlan
    from .rows import GatheredRows, Rows
    from .table.catalogue import TargetTable
    from .table.table_name import ResolvedName
    from .written import Counts, RowsForTable, TableOutcome, Upsert, Written


@dataclass(frozen=True)
class Plan:
    """
    The rows of each table, and what is known before any is written.

    ``listed`` are the oids of the tables among which rows choose, and ``written_as`` how rows are written to them, also
    to those that get none. ``counts`` and ``unrouted`` are about rows of none of them; ``notes`` says what was altered.
    """

    parts: Sequence[RowsForTable]
    listed: Mapping[str, int] = field(default_factory=dict)
    written_as: Mapping[str, WrittenAs] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    unrouted: int = 0
    notes: Mapping[str, str] = field(default_factory=dict)


class Routing(Protocol):
    """:mod:`pgonce.sink.writing.routes`, for ``route``."""

    def plan_in_tx(
        self,
        connection: psycopg.Connection,
        routes: Routes,
        rows: Rows,
        batch: Batch | None,
        found: Sequence[ResolvedName] | None,
    ) -> Plan:
        """Gather all rows, decide about those of no table, and lock the tables that get the others."""


class NewColumns(Protocol):
    """:mod:`pgonce.sink.writing.new_columns`, for ``schemaEvolution=addColumns``."""

    def look_as_altered(
        self,
        connection: psycopg.Connection,
        table: TargetTable,
        encoded: Sequence[EncodedColumn],
        destination: Destination,
    ) -> TargetTable:
        """The table as it will be; refused if it cannot be altered."""

    def add_columns_in_tx(
        self,
        connection: psycopg.Connection,
        destination: Destination,
        encoded: Sequence[EncodedColumn],
        found: ResolvedName | None,
        gather: Callable[[], object],
    ) -> tuple[ResolvedName, str]:
        """Lock the table, altered so that it takes the rows: what its name means, and what was altered."""


class ByKey(Protocol):
    """:mod:`pgonce.sink.writing.by_key`, for ``mode=upsert`` and ``mode=apply``."""

    def plan_upsert(
        self, destination: Destination, plan: Sequence[ColumnPlan], table: TargetTable, encoded: Sequence[EncodedColumn]
    ) -> Upsert:
        """How the destination writes by key; refused if the rows or the table lack what that needs."""

    def refuse_actions_between(self, tables: Sequence[tuple[TargetTable, Changes | None]]) -> None:
        """Refuse deletes from one of these tables that change rows of another one."""

    def write_by_key_in_tx(self, connection: psycopg.Connection, rows: GatheredRows, written: Written) -> Counts:
        """Write the rows; what became of them, if they do more than replace stored ones."""


class BadRows(Protocol):
    """:mod:`pgonce.sink.writing.bad_rows`, for ``deadLetters``, and for rows that Postgres refuses."""

    def write_what_fits_in_tx(
        self,
        connection: psycopg.Connection,
        part: RowsForTable,
        written: Written,
        batch: Batch,
        most: int,
        rooms: Rooms,
    ) -> TableOutcome:
        """Write the rows that the table takes, and the others, at most so many, as dead letters."""

    def refuse_bad_batch(
        self, where: Destination | Routes, outcomes: Sequence[TableOutcome], counts: Mapping[str, int], unrouted: int
    ) -> None:
        """Refuse a batch with more dead letters than any of its tables may have, or with bad rows alone."""

    def write_in_turn_in_tx(
        self, connection: psycopg.Connection, gathered: GatheredRows, written: Written, error: psycopg.Error | None
    ) -> Counts:
        """Write all rows in their turn; or raise the error of writing them at once, with the row that it is about."""

    def note_copied(
        self,
        connection: psycopg.Connection,
        error: psycopg.Error,
        written: Written,
        bodies: Callable[[], Iterable[bytes]],
    ) -> None:
        """Add a note to the error of a COPY into the target: which row was refused."""


class Rooms(Readers, Protocol):
    """All rooms that the core may ask for."""

    def by_key(self) -> ByKey:
        """For ``mode=upsert`` and ``mode=apply``."""

    def bad_rows(self) -> BadRows:
        """For ``deadLetters``, and for an error that may be about a row."""

    def routes(self) -> Routing:
        """For ``route``."""

    def new_columns(self) -> NewColumns:
        """For ``schemaEvolution=addColumns``."""
