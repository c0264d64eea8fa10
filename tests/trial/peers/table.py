"""
The outcomes of the trial, and the table that is made of them.

Pure, but for reading the file. Invariant: a run is counted in one column of its cell alone: as it should be, or stopped
with an error, or neither, and rows that are lost or doubled are shown in every case.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_BEGIN, _END = "<!-- made by make trial -->", "<!-- end -->"


@dataclass(frozen=True)
class Outcome:
    """
    What came of one lane in one round: in records, and why it has stopped, if it has.

    :param product: the fingerprint of what of pgonce takes part in commits.
    """

    product: str
    way: str
    fault: str
    round: int
    lane: int
    hit: bool
    lost: int
    doubled: int
    other: int
    stopped: str = ""


def kept(file: Path) -> list[Outcome]:
    """Those of a file, an object a line."""
    return [Outcome(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


def cell(outcomes: Sequence[Outcome]) -> str:
    """What came of all runs of one way with one fault."""
    hit = [one for one in outcomes if one.hit]
    if not hit:
        return "not run"
    parts = []
    good = sum(not (one.lost or one.doubled or one.other or one.stopped) for one in hit)
    if good:
        parts.append(f"right {good}")
    # Of one that has stopped, what is still to come is not lost.
    for word, found in (
        ("**lost**", [one.lost for one in hit if one.lost and not one.stopped]),
        ("**doubled**", [one.doubled for one in hit if one.doubled]),
        ("**older row**", [one.other for one in hit if one.other and not one.stopped]),
    ):
        if found:
            least, most = min(found), max(found)
            parts.append(
                f"{word} {len(found)} ({least:,})" if least == most else f"{word} {len(found)} ({least:,}-{most:,})"
            )
    stopped = sum(bool(one.stopped) for one in hit)
    if stopped:
        parts.append(f"stopped {stopped}")
    return f"{', '.join(parts)} of {len(hit)}"


def table(outcomes: Sequence[Outcome], ways: Mapping[str, str], faults: Mapping[str, str]) -> str:
    """A row for each way, a column for each fault, both with their words; as Markdown."""
    lines = ["| | " + " | ".join(faults.values()) + " |", "|---" * (len(faults) + 1) + "|"]
    for way, shown in ways.items():
        cells = [cell([one for one in outcomes if (one.way, one.fault) == (way, fault)]) for fault in faults]
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def with_table(page: str, text: str) -> str:
    """The page with this in the place of what it had there."""
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{text}\n{_END}{after}"
