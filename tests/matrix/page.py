"""
Write the outcomes into tests/matrix/outcomes.md.

Pure. Invariant: there is a row for every combination; a row changes only if its combination was run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from matrix.combinations import Combination, combinations
from matrix.outcome import Outcome

BEGIN, END = "<!-- what make matrix found -->", "<!-- end of what make matrix found -->"
_HEAD = ("PySpark", "Postgres", "Python", "Java", "Outcome", "Commit")
_VERSIONS = ("pyspark", "postgres", "python", "java")
NOT_YET = "not run yet"


def with_outcomes(page: str, outcomes: Iterable[Outcome]) -> str:
    """The page, with these outcomes in its table."""
    before, _, rest = page.partition(BEGIN)
    table, _, after = rest.partition(END)
    known = rows(table)
    known.update({outcome.combination: _row(outcome) for outcome in outcomes})
    lines = [_line(_HEAD), _line(["---"] * len(_HEAD))]
    lines += [_line(known.get(one) or _empty(one)) for one in combinations()]
    return "\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"])


def rows(table: str) -> dict[Combination, list[str]]:
    """The rows of the table, by what they are about."""
    lines = [line for line in table.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    found = [row for row in cells if row[0] != _HEAD[0] and not row[0].startswith("-")]
    return {Combination(*map(_major, _VERSIONS, row)): row for row in found}


def _major(name: str, version: str) -> str:
    """4.3.0 is of 4.3, 3.11.7 of 3.11, and of Postgres and Java 18.4 is of 18, 19rc1 of 19."""
    found = re.match(r"\d+" if name in ("postgres", "java") else r"\d+\.\d+", version)
    return found[0] if found else version


def _row(outcome: Outcome) -> list[str]:
    asked = outcome.combination._asdict()
    versions = [outcome.versions.get(name, asked[name]) for name in _VERSIONS]
    return [*versions, outcome.in_words().replace("|", "/"), outcome.commit]


def _empty(combination: Combination) -> list[str]:
    return [*combination, NOT_YET, ""]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
