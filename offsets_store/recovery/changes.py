"""
In which order are a checkpoint's files written and taken away, so that it comes to a target?

Pure: part of :mod:`offsets_store.recovery.plan`. Invariant: any beginning of the changes leaves a checkpoint that the
ledger protects, and that a second plan mends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offsets_store.recovery.facts import Change, CheckpointFacts, checksum_of

FIRST_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
"""``commits/N`` of a stateless query, where there is none to copy: measured to be enough on Spark 4.3."""


@dataclass(frozen=True)
class Target:
    """The entries to write, the newest one that stays, and whether it stays committed."""

    entries: Mapping[int, str]
    newest: int
    is_committed: bool
    does: str


def changes_for(checkpoint: CheckpointFacts, target: Target) -> Iterator[Change]:
    """
    The files in an order in which any beginning of them leaves a checkpoint that can be mended again.

    Commits go before the entries that they name, and come after them. A checksum goes before its file: alone it would
    make Spark's next write of that file fail; and a stale one would make Spark refuse the new file.
    """
    for name in checkpoint.orphans:
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
        yield from _replaced(checkpoint, f"commits/{target.newest}", _commit_text(checkpoint))


def _replaced(checkpoint: CheckpointFacts, name: str, text: str | None) -> Iterator[Change]:
    checksum = checksum_of(name)
    if checksum in checkpoint.checksums and checksum not in checkpoint.orphans:
        yield Change(checksum, None)
    yield Change(name, text)


def _commit_text(checkpoint: CheckpointFacts) -> str:
    """Spark's own newest note, for its version must be the one that this query's Spark writes (it compares)."""
    newest = checkpoint.newest_commit
    return FIRST_COMMIT if newest is None else checkpoint.commits[newest].text
