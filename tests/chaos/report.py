"""
The outcomes of all faults: a table, and the outcomes themselves as JSON lines.

Pure, but for the files. Invariant: a fault that missed is counted as missed and nowhere else.
"""

from __future__ import annotations

import json
import re
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
# When in a commit a fault struck, which way a silent line was silent, how a table was altered.
_DETAIL = re.compile(r" (connect|in_copy|before_commit|after_commit)\b|, .*|(?<=altered): .*|(?<=maintained): .*")


def table(outcomes: Iterable[Outcome]) -> str:
    """
    A row for each kind of fault, and the sum; as Markdown.

    Faults that differ only in when they struck, or in details, share a row. It has the least and the greatest median.
    Those that struck queries in real-time and continuous mode have rows of their own.
    """
    by_kind: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_kind[_DETAIL.sub("", outcome.fault) + (" (real time)" if outcome.in_real_time else "")].append(outcome)
    every = [outcome for kind in by_kind.values() for outcome in kind]
    rows = [_row(kind, by_kind[kind], _medians(by_kind[kind])) for kind in sorted(by_kind)]
    return "\n".join([_HEAD, *rows, _row("**all**", every, _recovery(every))])


def _row(name: str, outcomes: list[Outcome], recovery: str) -> str:
    struck = [outcome for outcome in outcomes if outcome.hit]
    ends = sum(outcome.aimed_at == "all" for outcome in outcomes)
    cells = [
        name,
        len(struck),
        len(outcomes) - len(struck) - ends,
        sum(len(outcome.hit) for outcome in struck),
        sum(outcome.lost for outcome in outcomes),
        sum(outcome.doubled for outcome in outcomes),
        sum(len(outcome.refused) for outcome in outcomes),
        sum(len(outcome.failed) for outcome in outcomes),
        recovery,
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def _medians(outcomes: list[Outcome]) -> str:
    by_fault: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_fault[outcome.fault].append(outcome)
    medians = sorted({_recovery(found) for found in by_fault.values()} - {""}, key=lambda text: float(text[:-2]))
    return " to ".join(dict.fromkeys([*medians[:1], *medians[-1:]]))


def _recovery(outcomes: list[Outcome]) -> str:
    recoveries = [outcome.recovery for outcome in outcomes if outcome.hit and outcome.recovery is not None]
    return f"{median(recoveries):.1f} s" if recoveries else ""


def keep(outcomes: Iterable[Outcome], file: Path) -> None:
    """Add outcomes to a file, a JSON object a line."""
    with file.open("a") as lines:
        lines.writelines(json.dumps(asdict(outcome)) + "\n" for outcome in outcomes)
