"""
Read a query's checkpoint: which query it is, its batches and their offsets.

Runs in the planner worker, the commit worker, the driver and the command line. It never writes. Invariant: an answer is
what a whole file says, or a CheckpointError.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TypeVar

from ..errors import CheckpointError, NoCheckpointError
from ..offsets import Offsets, is_kafka, same_json
from .files import CheckpointFiles, open_location
from .log_entries import (
    CommitLog,
    MalformedFileError,
    OffsetLog,
    OffsetLogEntry,
    decode,
    parse_commit_log,
    parse_initial_offset,
    parse_offset_log,
    parse_query_id,
)

_T = TypeVar("_T")

REAL_TIME_RUNS = "pgonce-real-time"
"""The folder in which each run in real time makes a checkpoint of its own."""

_FIRST_PAUSE = 0.002
_LONGEST_PAUSE = 0.1
# Of a query that keeps state, Spark 4 writes one of these before the tasks of its first batch. Operators are counted
# from 0; transformWithState has its file by the number of the batch that began the run.
_FIRST_OF_STATE = ("state/0/_metadata/metadata", "state/0/_metadata/v2/0")


class Checkpoint:
    """
    One query's checkpoint, read only.

    :param location: as given to Spark: a path (a relative one counts from the driver's working directory), or
        a URI whose scheme is file, s3a, hdfs, abfss or gs. Credentials come from the environment.
        Or files that are open already: a driver can read through Spark's own file system.
    :raises CheckpointError: CHECKPOINT_LOCATION. Every method may raise CHECKPOINT_UNREADABLE, and those that
        read a file CHECKPOINT_MALFORMED and PGONCE_TOO_OLD.
    """

    def __init__(self, location: str | CheckpointFiles) -> None:
        self._files = open_location(location) if isinstance(location, str) else location
        self.location = self._files.shown
        """Where the checkpoint is, as it may be shown and stored: without credentials."""
        self.read_by = self._files.read_by
        """What reads it: Python itself, pyarrow, or Spark."""

    def query_id(self) -> str:
        """
        The id that the query keeps over all its restarts.

        :raises CheckpointError: CHECKPOINT_NOT_FOUND.
        """
        query_id = self._parsed("metadata", parse_query_id)
        if query_id is None:
            raise NoCheckpointError.usual(
                "CHECKPOINT_NOT_FOUND",
                f"There is no checkpoint of a query at {self.location}: it has no file named metadata.",
                "Give the location that the query itself uses. Spark reads a path without a scheme in its "
                "default file system: where that is not this machine's disk, write the whole URI, such as "
                "hdfs://host/path.",
            )
        return query_id

    def offset_log(self, batch_id: int, *, wait_seconds: float = 0) -> OffsetLog:
        """
        Where batch ``batch_id`` ends, in each source.

        :param wait_seconds: how long to wait for the file, which asynchronous progress tracking writes late.
        :raises CheckpointError: OFFSETS_NOT_FOUND.
        """
        deadline = time.monotonic() + wait_seconds
        pause = _FIRST_PAUSE
        while True:
            late = time.monotonic() >= deadline
            try:
                if (found := self.find_offset_log(batch_id)) is not None:
                    return found
            except MalformedFileError:
                # In a store where a rename is a copy, a file can be seen half written.
                if late:
                    raise
            if late:
                raise self._offsets_not_found(batch_id, wait_seconds)
            time.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    def find_offset_log(self, batch_id: int) -> OffsetLog | None:
        """Where batch ``batch_id`` ends; None if Spark has not planned it, or no longer keeps the file."""
        return self._parsed(f"offsets/{batch_id}", parse_offset_log)

    def commit_log(self, batch_id: int) -> CommitLog | None:
        """Spark's note that the batch is done; None if it is not, or the note is no longer kept."""
        return self._parsed(f"commits/{batch_id}", parse_commit_log)

    def is_committed(self, batch_id: int) -> bool:
        """Whether Spark has noted that the batch is done."""
        return self._files.exists(f"commits/{batch_id}")

    def batch_ids(self) -> tuple[list[int], list[int]]:
        """The batches in ``offsets/`` and those in ``commits/``, ascending."""
        return sorted(self._numbers("offsets")), sorted(self._numbers("commits"))

    def newest_offset_entry(self) -> OffsetLogEntry | None:
        """
        The newest file in ``offsets/``; None if there is none.

        The planner's worker, which does not know the batch id, asks this for every micro-batch.
        """
        numbers = sorted(self._numbers("offsets"), reverse=True)
        # An entry that is listed and cannot be read was removed: a store may list it for a while after a recovery.
        for number in numbers:
            data = self._files.read(f"offsets/{number}")
            if data is not None:
                return OffsetLogEntry(number, hashlib.sha256(data).hexdigest())
        if numbers:
            raise self._offsets_not_found(numbers[0], 0)
        return None

    def initial_offsets(self, entry: OffsetLog | None = None) -> Offsets:
        """
        Where batch 0 began, for the sources that keep this (Kafka's); the others are absent.

        :param entry: that of batch 0. The answer has its source ids, and is empty if they do not tell which source is
            which. Without an entry, a source's id is the name of its folder.
        """
        found: Offsets = {}
        # The entry's ids too, because a store may list new folders late.
        for source_id in sorted({*self._files.names("sources"), *(entry.offsets if entry else ())}):
            name = f"sources/{source_id}/0"
            data = self._files.read(name)
            offset = None if data is None else parse_initial_offset(data, self._called(name))
            if offset is not None:
                found[source_id] = offset
        return found if entry is None else _of_entry(found, entry)

    def is_stateful(self) -> bool:
        """
        Whether the query keeps state (aggregates, joins, deduplication).

        A folder is only the beginning of names in a listing, so where listings are late its first files are asked for.
        """
        if self._files.exists("state"):
            return True
        return self._files.lists_late and any(self._files.read(name) is not None for name in _FIRST_OF_STATE)

    def _parsed(self, name: str, parse: Callable[[str, str], _T]) -> _T | None:
        data, called = self._files.read(name), self._called(name)
        return None if data is None else parse(decode(data, called), called)

    def _called(self, name: str) -> str:
        return f"The checkpoint's {self.location}/{name}"

    def _numbers(self, folder: str) -> list[int]:
        # The folder also has .N.crc, .N.<uuid>.tmp and, in other logs, N.compact.
        found = [int(name) for name in self._files.names(folder) if name.isdecimal() and name.isascii()]
        # Spark's numbers are 64-bit integers, and so are those of the ledger.
        if max(found, default=0) >= 2**63 - 1:
            raise CheckpointError.usual(
                "CHECKPOINT_MALFORMED",
                f"{self._called(f'{folder}/{max(found)}')} has a number that no batch of Spark has.",
                "Remove that file: neither Spark nor pgonce has made it.",
            )
        if self._files.lists_late:
            # Some object stores list a new file later than they let it be read. Spark's numbers have no holes.
            number = max(found, default=-1) + 1
            while self._files.read(f"{folder}/{number}") is not None:
                found.append(number)
                number += 1
        return found

    def _offsets_not_found(self, batch_id: int, waited: float) -> CheckpointError:
        kept = sorted(self._numbers("offsets"))
        there = f"it holds batches {kept[0]} to {kept[-1]}" if kept else "it holds no batch at all"
        return CheckpointError.usual(
            "OFFSETS_NOT_FOUND",
            f"The checkpoint {self.location} has no offsets of batch {batch_id}"
            + (f" after {waited:g} seconds" if waited else "")
            + f": {there}.",
            "Check that this is the checkpoint of the running query, and that nothing else cleans it up. If it was "
            "deleted: page `recovering` of the documentation, A lost checkpoint. With a path that has no scheme, check "
            "that Spark's default file system is this machine's disk.",
        )


def _of_entry(starts: Offsets, entry: OffsetLog) -> Offsets:
    """
    The starts that were found in the folders, under the source ids of the entry.

    A source that the plan reads twice (``a.union(b)``, both from one ``readStream``) has one folder. In the entry it
    has a line for each time in version 1, and one line with the number of the last time in version 2.
    """
    # A pattern that no topic matches yet has an empty start, and no offset in the entry.
    lines = {
        source_id: offset
        for source_id, offset in entry.offsets.items()
        if is_kafka(offset) or (offset is None and source_id in starts)
    }
    # The number of a folder is at most that of its source's line, so each is the other's if both have the same numbers.
    if starts.keys() == lines.keys():
        return starts
    first, *others = lines.values() or [None]
    reads_one = not others or (entry.version == 1 and all(same_json(first, offset) for offset in others))
    if len(starts) > 1 or not reads_one:
        return {}
    return {source_id: start for start in starts.values() for source_id in lines}
