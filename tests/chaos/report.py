"""
The outcomes of all faults: a table, and the outcomes themselves as JSON lines.

Pure, but for the files. Invariant: a fault that missed is counted as missed and nowhere else.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import median

from chaos.campaign import Outcome

_HEAD = (
    "| Fault | Struck | Missed | Queries hit | Rows lost | Rows doubled | Refused | Query failed and started again "
    "| Recovery, median |\n|---|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def table(outcomes: Iterable[Outcome]) -> str:
    """A row for each kind of fault, and the sum; as Markdown."""
    by_fault: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_fault[outcome.fault].append(outcome)
    every = [outcome for kind in by_fault.values() for outcome in kind]
    return "\n".join([_HEAD, *(_row(name, by_fault[name]) for name in sorted(by_fault)), _row("**all**", every)])


def _row(name: str, outcomes: list[Outcome]) -> str:
    struck = [outcome for outcome in outcomes if outcome.hit]
    ends = sum(outcome.aimed_at == "all" for outcome in outcomes)
    recoveries = [outcome.recovery for outcome in struck if outcome.recovery is not None]
    cells = [
        name,
        len(struck),
        len(outcomes) - len(struck) - ends,
        sum(len(outcome.hit) for outcome in struck),
        sum(outcome.lost for outcome in outcomes),
        sum(outcome.doubled for outcome in outcomes),
        sum(len(outcome.refused) for outcome in outcomes),
        sum(len(outcome.failed) for outcome in outcomes),
        f"{median(recoveries):.1f} s" if recoveries else "",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def keep(outcomes: Iterable[Outcome], file: Path) -> None:
    """Add outcomes to a file, a JSON object a line."""
    with file.open("a") as lines:
        lines.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
