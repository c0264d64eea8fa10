"""
How many rows of a batch may be put aside?

Pure; runs in the commit. Invariant: a batch of several rows of which none can be written is never put aside as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.sink.target.catalogue import TargetTable
from pgonce.sink.target.dead_letters.bad_row import BadRow
from pgonce.sink.unfit_row import UnfitRow


def refuse_too_many(table: TargetTable, rows: Iterable[BadRow], most: int) -> None:
    """:raises TargetError: TOO_MANY_DEAD_LETTERS."""
    bad = list(rows)
    if len(bad) > most:
        raise too_many(table.qualified_name, most, of_one(bad[0]))


def of_one(row: BadRow | UnfitRow) -> str:
    """Why one of several bad rows cannot be written, as a sentence."""
    return f" One of them was refused with {row.code}: {row.message}"


def none_fits(table: str, why: str = "") -> TargetError:
    """The error for a batch of which no row can be written; ``why`` says that of one of them."""
    return TargetError(
        "ALL_ROWS_REFUSED",
        f"None of the rows of the batch can be written to {table}, so they are not put aside as dead letters: this is "
        f"no fault of single rows.{why}",
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
