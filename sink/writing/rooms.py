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

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import psycopg

    from pgonce.offsets_store.ledger.published import WrittenAs
    from pgonce.offsets_store.verdict.facts import Batch

    from ..encoding.encoded_types import EncodedColumn
    from ..options.destination import Destination
    from ..options.routes import Routes
    from ..read_rows import Feeds
    from .rows import Rows
    from .table.catalogue import TargetTable
    from .table.table_name import ResolvedName
    from .write_table import RowsForTable


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


class Rooms(Protocol):
    """All rooms that the core may ask for."""

    def feeds(self) -> Feeds:
        """For ``mode=apply``."""

    def routes(self) -> Routing:
        """For ``route``."""

    def new_columns(self) -> NewColumns:
        """For ``schemaEvolution=addColumns``."""
