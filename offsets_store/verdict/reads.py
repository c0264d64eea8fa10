"""
What does a query read, and is that proven to be apart from what another one reads?

Pure: runs in the commit, and in the command ``pgonce``. Invariant: what is not known is never apart. Two queries are
apart where both read nothing but Kafka, and no partition is the same; or both nothing but folders of files, and no
folder is, or lies in, the other's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pgonce.offsets_store.offsets.compare import Offsets, is_kafka, kafka_partitions

Folders = Mapping[str, tuple[str, ...]]
"""Source id to the folder that Spark describes the source by, under each name that it has (links)."""

# Where a path's first pattern stands: from there on it may mean any folder.
_PATTERN = frozenset("*?[{\\")


@dataclass(frozen=True)
class Reads:
    """All that a query has ever read, as far as it was recorded: Kafka's topics and partitions, and folders."""

    partitions: frozenset[tuple[str, int]] = frozenset()
    folders: frozenset[str] = frozenset()

    def and_also(self, others: Reads) -> Reads:
        """Both together."""
        return Reads(self.partitions | others.partitions, self.folders | others.folders)

    def record(self) -> dict[str, Any]:
        """The same as the ledger keeps it."""
        topics: dict[str, list[int]] = {}
        for topic, partition in sorted(self.partitions):
            topics.setdefault(topic, []).append(partition)
        return {"kafka": topics, "folders": sorted(self.folders)}


def recorded_reads(record: Any) -> Reads | None:
    """What the ledger says that a writer reads; None where it does not know all of it."""
    if not isinstance(record, dict):
        return None
    kafka = record.get("kafka", {})
    return Reads(
        frozenset((topic, partition) for topic, partitions in kafka.items() for partition in partitions),
        frozenset(record.get("folders", ())),
    )


def reads_of(offsets: Offsets | None, folders: Folders) -> Reads | None:
    """All that a query reads, as a batch shows it; None where of one of its sources nobody can tell, or of any."""
    if not offsets or not all(is_kafka(offset) or folders.get(source) for source, offset in offsets.items()):
        return None
    return seen_in(offsets, folders)


def seen_in(offsets: Offsets | None, folders: Folders) -> Reads:
    """What a batch shows that its query reads, be it all or not."""
    of_files = (folders.get(source, ()) for source, offset in (offsets or {}).items() if not is_kafka(offset))
    return Reads(frozenset(kafka_partitions(offsets or {})), frozenset(name for names in of_files for name in names))


def together(before: Reads | None, now: Reads | None) -> Reads | None:
    """Both of them; None where either is not known."""
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
    """What both are seen to read, in words."""
    topics = sorted({topic for topic, _ in ours.partitions & theirs.partitions})
    found = [f"the same Kafka partitions of {', '.join(topics)}"] if topics else []
    overlapping = {b for a in ours.folders for b in theirs.folders if _may_overlap(a, b)}
    return [*found, *(f"perhaps the same files in {folder}" for folder in _shortest(overlapping))]


def _shortest(folders: Iterable[str]) -> list[str]:
    # A folder under several names is one folder to people.
    return sorted(folders, key=lambda folder: (len(folder), folder))[:1]


def _may_overlap(one: str, other: str) -> bool:
    (one_scheme, one_path), (other_scheme, other_path) = _parts(one), _parts(other)
    if one_scheme != other_scheme:
        # One store may go by several names (s3 and s3a, a mount and what is mounted).
        return True
    depth = min(len(one_path), len(other_path))
    return one_path[:depth] == other_path[:depth]


def _parts(folder: str) -> tuple[str, list[str]]:
    """Scheme, and the names on the way down to the first pattern."""
    scheme, _, path = folder.partition(":")
    if path.startswith("//"):
        # Hosts are not compared: a name node has several names.
        path = path[2:].partition("/")[2]
    # Some file systems take large and small letters for the same.
    names = [name.casefold() for name in path.split("/") if name]
    literal = next((at for at, name in enumerate(names) if not _PATTERN.isdisjoint(name)), len(names))
    return scheme.lower(), names[:literal]
