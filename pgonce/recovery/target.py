"""
The changes that make a checkpoint stand at a batch.

Pure: made by ``plan``, and carried out by ``recover``. Invariant: the changes may stop after any of them; what is left
can be repaired again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from .stopped_query import Change, CheckpointFacts, checksum_of

FIRST_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
"""``commits/N`` of a stateless query, where there is none to copy; found to be enough on Spark 4.3."""


@dataclass(frozen=True)
class Target:
    """
    The entries to write, the newest one that stays, whether it stays committed, and the text for all this.

    ``may_double`` is that of the :class:`~pgonce.recovery.plan.Plan`.
    """

    entries: Mapping[int, str]
    newest: int
    is_committed: bool
    does: str
    may_double: bool = False


def changes_for(checkpoint: CheckpointFacts, target: Target) -> Iterator[Change]:
    """
    The changes, in such an order that any first part of them leaves a checkpoint that can be repaired again.

    A commit is removed before the entry that it names, and written after it. A checksum is removed before its file: a
    checksum without a file makes Spark's next write of that file fail, and a stale one makes Spark refuse the new file.
    """
    for name in checkpoint.useless:
        yield Change(name, None)
    first_to_go = target.newest + 1 if target.is_committed else target.newest
    for number in sorted((n for n in checkpoint.commits if n >= first_to_go), reverse=True):
        yield from _replaced(checkpoint, f"commits/{number}", None)
    for number in sorted((n for n in checkpoint.offsets if n > target.newest), reverse=True):
        yield from _replaced(checkpoint, f"offsets/{number}", None)
    for number, text in sorted(target.entries.items()):
        there = checkpoint.offsets.get(number)
        if there is None or there.text != text:
            yield from _replaced(checkpoint, f"offsets/{number}", text)
    if target.is_committed and target.newest not in checkpoint.commits:
        # A copy of Spark's newest note: Spark refuses a note of another version than the one that it writes.
        newest = checkpoint.newest_commit
        text = FIRST_COMMIT if newest is None else checkpoint.commits[newest].text
        yield from _replaced(checkpoint, f"commits/{target.newest}", text)


def _replaced(checkpoint: CheckpointFacts, name: str, text: str | None) -> Iterator[Change]:
    checksum = checksum_of(name)
    if checksum in checkpoint.checksums and checksum not in checkpoint.orphans:
        yield Change(checksum, None)
    yield Change(name, text)
