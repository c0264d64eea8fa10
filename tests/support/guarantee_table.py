"""
The guarantee that docs/guarantees.md promises for each query.

Pure. Invariant: what a row means is decided here alone, and a cell that cannot be read is an error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, cast, get_args

Guarantee = Literal["exactly-once", "refused", "refused after a crash"]

WAYS = ('`format("pgonce")`', "`PostgresBatchWriter`", "`transactional_batch`")
TRIGGERS = ("processing time", "available now", "once", "continuous", "real time")
PROGRESS = (
    "off",
    "interval 0",
    "interval above 0",
    "interval above 0 with positions",
    "interval above 0 with `recover_and_start`",
)
QUERIES = ("stateless", "stateful in append", "stateful in update", "stateful in complete")
SOURCES = ("Kafka", "rate-micro-batch", "files")

_GROUPS = {"on": PROGRESS[1:], "stateful": QUERIES[1:]}
_COLUMNS = ("Way in", "Trigger", "Asynchronous progress", "Query", "Source", "Guarantee", "Refused by", "Instead")
_BY = ("pgonce", "Spark")


class Combination(NamedTuple):
    """One query: a value of each column."""

    way: str
    trigger: str
    progress: str
    query: str
    source: str

    def __str__(self) -> str:
        """As a test's id shows it."""
        return ", ".join(self).replace("`", "")


@dataclass(frozen=True)
class Row:
    """
    A row of the table.

    ``cells`` are the values that each of the first columns names. ``by`` is who refuses, with a text that the error
    has: pgonce's code, Spark's error class or words; both are empty if the query is not refused.
    """

    number: int
    cells: tuple[tuple[str, ...], ...]
    guarantee: Guarantee
    by: str
    says: str
    instead: str

    def combinations(self) -> Iterator[Combination]:
        """All queries that the row speaks of."""
        return _combinations(self.cells)


def every_combination() -> Iterator[Combination]:
    """All queries that there are."""
    return _combinations((WAYS, TRIGGERS, PROGRESS, QUERIES, SOURCES))


def _combinations(values: tuple[tuple[str, ...], ...]) -> Iterator[Combination]:
    for combination in itertools.starmap(Combination, itertools.product(*values)):
        # A writer that cannot be made: the arguments exclude each other, and there is no query to speak of.
        if (combination.way, combination.progress, combination.query) != (WAYS[1], PROGRESS[3], QUERIES[3]):
            yield combination


def rows_of(page: str) -> list[Row]:
    """
    The rows of the page's table, which is the one that has these columns.

    :raises ValueError: where there is no such table, or a cell that means nothing.
    """
    lines = page.splitlines()
    heads = [number for number, line in enumerate(lines) if _cells(line) == _COLUMNS]
    if len(heads) != 1:
        raise ValueError(f"{len(heads)} tables with the columns {', '.join(_COLUMNS)}")
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[heads[0] + 2 :])
    return [_row(number, _cells(line)) for number, line in enumerate(body, 1)]


def _cells(line: str) -> tuple[str, ...]:
    return tuple(cell.strip() for cell in line.strip().strip("|").split("|"))


def _row(number: int, cells: tuple[str, ...]) -> Row:
    if len(cells) != len(_COLUMNS):
        raise ValueError(f"row {number} has {len(cells)} cells")
    values = zip((WAYS, TRIGGERS, PROGRESS, QUERIES, SOURCES), cells, strict=False)
    named = tuple(_values(known, cell, number) for known, cell in values)
    guarantee, refused_by, instead = cells[5:]
    if guarantee.strip("*") not in get_args(Guarantee):
        raise ValueError(f"row {number} promises {guarantee!r}")
    by, says = _refusal(refused_by, number)
    promised = cast("Guarantee", guarantee.strip("*"))
    if bool(by) == (promised == "exactly-once"):
        raise ValueError(f"row {number} promises {promised}, but names {by or 'nobody'} who refuses")
    return Row(number, named, promised, by, says, instead)


def _values(known: tuple[str, ...], cell: str, number: int) -> tuple[str, ...]:
    if cell == "*any*":
        return known
    parts = (part.strip() for part in cell.split(","))
    named = tuple(value for part in parts for value in _GROUPS.get(part, (part,)))
    if not set(named) <= set(known) or len(set(named)) < len(named):
        raise ValueError(f"row {number} names {cell!r}; known are {', '.join(known)}")
    return named


def _refusal(cell: str, number: int) -> tuple[str, str]:
    if cell == "-":
        return "", ""
    found = re.fullmatch(r"(\w+): `([^`]+)`", cell)
    if not found or found[1] not in _BY:
        raise ValueError(f"row {number} does not say who refuses, and how: {cell!r}")
    return found[1], found[2]
