"""
What a batch writes into one table: which rows, how they get there, what they are counted as, and which are bad.

Made in the commit, before rows are written; the first look plans the same. Invariant: a gathered row is known by its
place (``ctid``), which it keeps as long as the table of gathered rows exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pgonce.offsets_store.ledger.published import WrittenAs

from ..encoding.encoded_types import EncodedColumn
from ..options.destination import Changes, Destination, Existing
from ..options.position_columns import PositionColumns
from .checked_table import ColumnPlan
from .rows import Gathering, Rows
from .table.catalogue import TargetTable
from .table.table_name import ResolvedName

Counts: TypeAlias = Mapping[str, int] | None
"""What rows are counted as; None where all were written in place of stored ones, or as new rows."""
WRITTEN = "written"
"""The count of rows that were written; it is all that is said of a batch without other counts."""
PUT_ASIDE = "dead_letters"
"""The count of rows that are dead letters."""
UNROUTED = "unrouted"
"""The count of rows with unknown routes that are left out."""


@dataclass(frozen=True)
class RowsForTable:
    """
    The ``rows`` of a batch that are to be written as ``destination`` says, and how the transaction stands by then.

    :param gathering: brings them to Postgres.
    :param found: what is known about the table's name.
    :param route: the value that chooses this table among several.
    :param is_last: whether nothing else is written afterwards.
    :param is_emptied: whether the table that a complete batch replaces is empty.
    :param restores_path: whether our search_path is still in force, and the user's is to be set with the lock.
    """

    destination: Destination
    rows: Rows
    gathering: Gathering
    found: ResolvedName | None = None
    route: str | None = None
    is_last: bool = False
    is_emptied: bool = False
    restores_path: bool = False


@dataclass(frozen=True)
class Upsert:
    """
    The columns that tell rows apart, and the one that says which of two rows of a key is the newer.

    ``order_by`` need not be a column of the table, unless only newer rows are written. With ``of_letters``, a row may
    be older than a stored one of the same order.
    """

    keys: tuple[ColumnPlan, ...]
    order_by: ColumnPlan | None
    existing: Existing = field(default_factory=Existing)
    of_letters: bool = False

    def changed(self, plan: Sequence[ColumnPlan]) -> list[str]:
        """The table's columns that an update sets."""
        rest, some = [column.target for column in plan if column not in self.keys], self.existing.update_columns
        return [name for name in rest if not some or name in {*some, self.newer_by}]

    @property
    def newer_by(self) -> str | None:
        """The table's column that says which row is newer, if a stored row gives way only to one that is."""
        return self.order_by.target if self.existing.only_newer and self.order_by else None


@dataclass(frozen=True)
class Written:
    """What is to be written: which columns of which rows, into which table; ``upsert`` is for those that have keys."""

    table: TargetTable
    plan: tuple[ColumnPlan, ...]
    columns: Sequence[EncodedColumn]
    upsert: Upsert | None = None
    positions: PositionColumns | None = None
    changes: Changes | None = None

    @property
    def by_key(self) -> Upsert:
        """How the rows are written by key, where they are."""
        if self.upsert is None:
            raise TypeError("rows are not written by key")
        return self.upsert


@dataclass(frozen=True)
class TableOutcome:
    """
    What became of the rows for ``table``, which is described as it is now.

    ``refused`` of the batch's rows were put aside, and ``rows`` are the others that were not stored before; ``counts``
    says what became of all rows, including those that could not be encoded. ``too_early`` of them do not speak against
    the table: the rows that they update are not there yet, or they come from records that would be rows of no table.
    ``why`` says in a sentence why a row is bad.
    """

    table: TargetTable
    written_as: WrittenAs
    rows: int
    counts: Mapping[str, int]
    refused: int = 0
    too_early: int = 0
    why: str = ""


class MustTakeTurnsError(Exception):
    """Rows cannot be written at once, because what one of them leaves depends on those before it."""
