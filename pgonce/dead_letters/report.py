"""
Say in sentences what a replay or a discard of dead letters does, or has done.

Pure: runs in the command ``pgonce dead-letters``. Invariant: a sentence names letters by their
ids, and shows nothing of their rows but what a refusal says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pgonce.dead_letters.chosen_letters import shown_ids
from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.offsets_store.status.stored import outcomes

if TYPE_CHECKING:
    from .replay import Group


def replay_says(groups: Sequence[Group], *, is_done: bool) -> list[str]:
    """What is written, by table, and which letters stay, by the reason why."""
    return [*_replayed(groups), *_kept(groups, is_done=is_done)]


def _replayed(groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        if group.letters and not group.replayed:
            continue
        became = ", ".join(outcomes(group.counts))
        yield (
            f"{len(group.replayed)} into {group.destination.table} (mode {group.destination.mode}): "
            f"{_ids(group.replayed)}{f'; {became}' if became else ''}."
        )


def _kept(groups: Sequence[Group], *, is_done: bool) -> Iterator[str]:
    by_reason: dict[tuple[str, bool], list[StoredLetter]] = {}
    for group in groups:
        for one in group.kept:
            by_reason.setdefault((one.why, one.is_refused), []).append(one.letter)
    for (why, is_refused), letters in by_reason.items():
        changes_nothing = "changes nothing, so its letter stays" if is_done else "would change nothing"
        what = "is refused" if is_refused else changes_nothing
        yield f"{_ids(letters)}: the row {what}: {why}{'' if why.endswith('.') else '.'}"


def discard_says(letters: Sequence[StoredLetter]) -> list[str]:
    """What is deleted, by table and code."""
    by_reason: dict[tuple[str, str], list[StoredLetter]] = {}
    for letter in letters:
        by_reason.setdefault((letter.target, letter.code), []).append(letter)
    said = [
        f"{len(own)} for {target}, refused as {code}: {_ids(own)}." for (target, code), own in sorted(by_reason.items())
    ]
    if letters:
        said.append("A discarded row is deleted for good: no restart of the query brings it back.")
    return said


def _ids(letters: Sequence[StoredLetter]) -> str:
    return f"id {shown_ids([letter.dead_letter_id for letter in letters])}"
