"""
Limit how many rows of a batch are put aside, and how long the commit searches for them.

Runs in the commit, and reads nothing but the clock. Invariant: if no row of a batch of several rows can be written, the
batch is refused, not put aside as a whole; and a search ends.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from pgonce.offsets_store.errors import NOTHING, TargetError

from ...encoding.unfit_rows import UnfitRow
from ..bad_row import BadRow
from ..table.catalogue import TargetTable

MOST_TRIES = 5_000
"""
As many as it takes to find 100 bad rows (the default of maxDeadLetters) among some millions by halves.

Each row that was found is tried once more by itself; that is not counted, because maxDeadLetters bounds it.
"""
MOST_SECONDS = 300
"""All the while the transaction holds its locks, and what was tried stays in the table's file until it is vacuumed."""


@dataclass
class SearchBound:
    """
    How often a search for bad rows has tried a part of them, and since when; ``why`` says what Postgres has refused.

    A try that has begun is not cut short, so that a search may take longer by the time that writing the batch takes.
    """

    table: str
    why: str = ""
    most_seconds: float | None = None
    tries: int = 0
    began: float = field(default_factory=time.monotonic)

    def left(self) -> tuple[int, float]:
        """One try more than there may be, and how many seconds are left."""
        return MOST_TRIES - self.tries + 1, self._most_seconds - (time.monotonic() - self.began)

    @property
    def _most_seconds(self) -> float:
        return MOST_SECONDS if self.most_seconds is None else self.most_seconds

    def refuse_longer(self, tries: int = 0) -> None:
        """Count more ``tries``. :raises TargetError: SEARCH_TOO_LONG."""
        self.tries += tries
        seconds = time.monotonic() - self.began
        if self.tries > MOST_TRIES or seconds > self._most_seconds:
            raise TargetError(
                "SEARCH_TOO_LONG",
                f"Postgres refuses rows of the batch for {self.table}, but pgonce could not find these rows in "
                f"{self.tries - tries} tries and {seconds:.0f} seconds (at most {MOST_TRIES} tries and "
                f"{self._most_seconds:g} seconds).{self.why}",
                NOTHING,
                "Find such rows in the source or in the table, and repair them or filter them out: many at once "
                "often have one cause. Or make the batches smaller (maxOffsetsPerTrigger, maxFilesPerTrigger): they "
                "have fewer bad rows, and each try is shorter.",
            )


def refuse_too_many(table: TargetTable, rows: Iterable[BadRow], most: int) -> None:
    """:raises TargetError: TOO_MANY_DEAD_LETTERS."""
    bad = list(rows)
    if len(bad) > most:
        raise too_many(table.qualified_name, most, of_one(bad[0]))


def of_one(row: BadRow | UnfitRow) -> str:
    """Why one of several bad rows cannot be written, as a sentence."""
    return f" One of them was refused with {row.code}: {row.message}"


def none_fits(table: str, why: str = "") -> TargetError:
    """The error for a batch without a row that can be written; ``why`` is the reason for one of its rows."""
    return TargetError(
        "ALL_ROWS_REFUSED",
        f"No row of the batch can be written to {table}. So the cause is not in single rows, and none of them is "
        f"put aside as a dead letter.{why}",
        NOTHING,
        "Remove the cause, in the source or in the table, and start the query again: Spark runs the batch again.",
    )


def too_many(table: str, most: int, why: str = "") -> TargetError:
    """The error for a batch with more bad rows than are allowed; ``why`` says of one of them why it is one."""
    return TargetError(
        "TOO_MANY_DEAD_LETTERS",
        f"More than {most} rows of the batch cannot be written to {table}, and maxDeadLetters allows no more.{why}",
        NOTHING,
        "So many bad rows at once often have one cause, in the source or in the table: remove it. Or raise "
        "maxDeadLetters, and repair the rows later (`pgonce dead-letters`).",
    )
