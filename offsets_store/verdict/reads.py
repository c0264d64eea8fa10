"""
Describe what a query reads, and decide whether another query is proven to read something else.

Pure: runs in the commit, and in the command ``pgonce``. Invariant: unknown sources never count as different. Two
queries read different places if both read only Kafka, and share no partition; or if both read only folders of files,
and no folder of one is a folder of the other, or is inside one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

from ..offsets import Offsets, is_kafka, kafka_partitions

Folders = Mapping[str, tuple[str, ...]]
"""Source id to the folder by which Spark describes the source, under each of its names (there may be links)."""

# The characters of a pattern: from the first one on, a path may mean any folder.
_PATTERN = frozenset("*?[{\\")


@dataclass(frozen=True)
class Reads:
    """All that a query has ever read, as far as it was recorded: Kafka's topics and partitions, and folders."""

    partitions: frozenset[tuple[str, int]] = frozenset()
    folders: frozenset[str] = frozenset()

    def and_also(self, others: Reads) -> Reads:
        """What either of the two reads."""
        return Reads(self.partitions | others.partitions, self.folders | others.folders)

    def record(self) -> dict[str, Any]:
        """The form in which the ledger keeps it."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            topics.setdefault(topic, []).append(partition)
        return {"kafka": topics, "folders": sorted(self.folders)}


def recorded_reads(record: Any) -> Reads | None:
    """What a writer reads, according to the ledger; None if the ledger does not know all of it."""
    if not isinstance(record, dict):
        return None
    kafka = record.get("kafka", {})
    return Reads(
        frozenset((topic, partition) for topic, partitions in kafka.items() for partition in partitions),
        frozenset(record.get("folders", ())),
    )


def reads_of(offsets: Offsets | None, folders: Folders) -> Reads | None:
    """All that a query reads, as a batch shows it; None if it does not show that for each of the sources."""
    if not offsets or not all(is_kafka(offset) or folders.get(source) for source, offset in offsets.items()):
        return None
    return seen_in(offsets, folders)


def seen_in(offsets: Offsets | None, folders: Folders) -> Reads:
    """What a batch shows of what its query reads, whether that is all or not."""
    of_files = (folders.get(source, ()) for source, offset in (offsets or {}).items() if not is_kafka(offset))
    return Reads(frozenset(kafka_partitions(offsets or {})), frozenset(name for names in of_files for name in names))


def together(before: Reads | None, now: Reads | None) -> Reads | None:
    """What either of the two reads; None if one of them is unknown."""
    if before is None or now is None:
        return None
    return before.and_also(now)


def are_apart(ours: Reads | None, theirs: Reads | None) -> bool:
    """Whether it is proven that no row of one can be a row of the other."""
    if ours is None or theirs is None or shared(ours, theirs):
        return False
    only_kafka = not ours.folders and not theirs.folders
    return only_kafka or (not ours.partitions and not theirs.partitions)


def shared(ours: Reads, theirs: Reads) -> list[str]:
    """The text for what both are known to read."""
    topics = sorted({topic for topic, _ in ours.partitions & theirs.partitions})
    found = [f"the same Kafka partitions of {', '.join(topics)}"] if topics else []
    overlapping = {b for a in ours.folders for b in theirs.folders if _may_overlap(a, b)}
    return [*found, *(f"perhaps the same files in {folder}" for folder in _shortest(overlapping))]


def _shortest(folders: Iterable[str]) -> list[str]:
    # For people, a folder under several names is one folder.
    return sorted(folders, key=lambda folder: (len(folder), folder))[:1]


def _may_overlap(one: str, other: str) -> bool:
    (one_scheme, one_path), (other_scheme, other_path) = _parts(one), _parts(other)
    if one_scheme != other_scheme:
        # One store may have several names (s3 and s3a, or a mount and what is mounted).
        return True
    depth = min(len(one_path), len(other_path))
    return one_path[:depth] == other_path[:depth]


def _parts(folder: str) -> tuple[str, list[str]]:
    """The scheme, and the names of the path down to the first pattern."""
    scheme, _, path = folder.partition(":")
    if path.startswith("//"):
        # Hosts are not compared, because a name node has several names.
        path = path[2:].partition("/")[2]
    # Some file systems do not distinguish large and small letters, or an accented letter and a letter with its accent
    # (NFC and NFD). Casefolding can take the form apart again.
    names = [normalize("NFC", normalize("NFC", name).casefold()) for name in path.split("/") if name]
    literal = next((at for at, name in enumerate(names) if not _PATTERN.isdisjoint(name)), len(names))
    return scheme.lower(), names[:literal]
