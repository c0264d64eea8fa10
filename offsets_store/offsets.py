"""
What a checkpoint's files say, and how two sets of offsets stand to each other.

Runs anywhere, without I/O: in the commit worker, in the driver's foreachBatch function, on the command line.
Invariant: two sets are called the same only where nothing was lost in reading them, and an unknown offset
equals nothing.

Formats: Spark's ``OffsetSeqLog`` (versions 1 and 2), ``CommitLog`` (1 to 3), ``StreamMetadata``, and the
Kafka source's ``KafkaSourceInitialOffsetWriter``.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn, TypeGuard

from offsets_store.errors import CheckpointError
from offsets_store.exact_json import decode_exactly, same_json

Offsets = dict[str, Any]
"""Source id (``"0"``, ``"1"``, or a named source's name) to its parsed offset.

An offset is text where it is not JSON, or not exactly; it is None where the source had none yet.
"""

# The lines that Spark's own reader sees: str.splitlines() would also cut at U+2028, which JSON may hold.
_LINE_END = re.compile(r"\r\n|\r|\n")
_VERSION = re.compile(r"v([1-9][0-9]*)", re.ASCII)
_QUERY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)
_PARTITION = re.compile(r"0|[1-9][0-9]*", re.ASCII)


@dataclass(frozen=True)
class OffsetLog:
    """One file ``offsets/N``: where each source's range of batch N ends. `text` is the whole file."""

    version: int
    metadata: dict[str, Any]
    offsets: Offsets
    text: str

    @property
    def sha256(self) -> str:
        """The hash of the file's bytes, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def is_continuous(self) -> bool:
        """Whether a continuous query wrote it: those leave the metadata line empty."""
        return not _LINE_END.split(self.text)[1]


@dataclass(frozen=True)
class CommitLog:
    """One file ``commits/N``: Spark's note that batch N is done."""

    version: int
    metadata: dict[str, Any]
    text: str


class CurrentOffset(NamedTuple):
    """Where one source, or one partition of a Kafka source, stands; topic and partition are Kafka's only."""

    source_id: str
    topic: str | None
    partition: int | None
    offset: Any


def parse_offset_log(text: str, where: str = "The offset log entry") -> OffsetLog:
    """
    Read one file ``offsets/N``.

    :param where: what to call the file in an error, as the start of a sentence.
    :raises CheckpointError: CHECKPOINT_VERSION, CHECKPOINT_MALFORMED.
    """
    version, lines = _version_and_lines(text, (1, 2), where)
    if not lines:
        _malformed(where, "ends before its metadata line.")
    metadata = _json_object(lines[0], where, "the metadata line") if lines[0] else {}
    # Spark plans no batch for a query without sources, so this file was cut short.
    if len(lines) == 1:
        _malformed(where, "names no source.")
    offsets: Offsets = {}
    for index, line in enumerate(lines[1:]):
        source_id, separator, offset = (str(index), ":", line) if version == 1 else line.partition(":")
        if not separator or not source_id:
            _malformed(where, f"has no source id in line {index + 3}.")
        if source_id in offsets:
            _malformed(where, f"names the source {source_id} twice.")
        offsets[source_id] = parse_offset(offset)
    return OffsetLog(version, metadata, offsets, text)


def parse_commit_log(text: str, where: str = "The commit log entry") -> CommitLog:
    """
    Read one file ``commits/N``.

    :raises CheckpointError: CHECKPOINT_VERSION, CHECKPOINT_MALFORMED.
    """
    version, lines = _version_and_lines(text, (1, 2, 3), where)
    # Spark's own reader takes a missing line as `{}`.
    metadata = _json_object(lines[0], where, "its metadata") if lines else {}
    return CommitLog(version, metadata, text)


def parse_query_id(text: str, where: str = "The file metadata") -> str:
    """
    Read the checkpoint's file ``metadata``: the id that a query keeps over all its restarts.

    :raises CheckpointError: CHECKPOINT_MALFORMED.
    """
    query_id = _json_object(text, where, "its text").get("id")
    if not isinstance(query_id, str) or not _QUERY_ID.fullmatch(query_id):
        _malformed(where, "holds no query id.")
    return query_id


def parse_initial_offset(data: bytes, where: str = "The initial offset") -> Any:
    """
    Read a file ``sources/<i>/0``: the offset where batch 0 began, None where the file is no such thing.

    Only the Kafka source keeps its start there, marked by a NUL byte. Under the same name the file source
    keeps a list of files, and the rate source a clock reading.

    :raises CheckpointError: CHECKPOINT_VERSION, CHECKPOINT_MALFORMED.
    """
    if not data.startswith(b"\x00"):
        return None
    text = decode(data[1:], where)
    # Spark 2.1 wrote no version line, and Spark still reads such files.
    if text.startswith("v"):
        _, lines = _version_and_lines(text, (1,), where)
        text = "\n".join(lines)
    offset = parse_offset(text)
    if not is_kafka(offset):
        _malformed(where, "does not name topics, partitions and offsets.")
    return offset


def decode(data: bytes, where: str) -> str:
    """Turn a file's bytes into text, such that encoding it again gives the same bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        _malformed(where, f"is not UTF-8 from byte {error.start} on.", error)


def parse_offset(text: str) -> Any:
    """
    Read one source's offset, as the offset log, a progress event or the running query give it.

    ``-`` (no offset yet) gives None. What is not JSON, or cannot be held exactly, is returned as its text.
    """
    if text == "-":
        return None
    try:
        return decode_exactly(text)
    except ValueError:
        return text


def is_kafka(offset: Any) -> TypeGuard[dict[str, dict[str, int]]]:
    """Whether an offset has the shape ``{"topic": {"0": 23}}``: the next offset to read, by partition."""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(partitions, dict)
            and bool(partitions)
            and all(
                _PARTITION.fullmatch(partition) and type(position) is int and position >= 0
                for partition, position in partitions.items()
            )
            for partitions in offset.values()
        )
    )


def kafka_partitions(offsets: Offsets) -> set[tuple[str, int]]:
    """Every topic and partition that any source reads."""
    return {position[1:3] for position in kafka_positions(offsets)}


def says_which_rows(offsets: Offsets | None) -> bool:
    """Whether equal offsets mean equal rows: so it is in Kafka, and so it was seen not to be with files."""
    return bool(offsets) and all(map(is_kafka, (offsets or {}).values()))


def tells_which_rows(offset: Any) -> bool:
    """
    Whether an offset alone says which rows come next, so that a checkpoint can be written from it.

    So it is with Kafka, rate-micro-batch and Delta, whose shapes these are. A file source's offset is a line number in
    a list that lies beside it, and a bare number can be anything.
    """
    if not isinstance(offset, dict):
        return False
    return (
        is_kafka(offset)
        or offset.keys() == {"offset", "timestamp"}
        or {"reservoirId", "reservoirVersion"} <= offset.keys()
    )


def same(a: Offsets | None, b: Offsets | None) -> bool:
    """
    Whether both say the same of the same sources.

    Unknown equals nothing, not even itself: None, no sources at all, or a source whose offset is None.
    """
    return bool(a) and same_json(a, b) and None not in (a or {}).values()


def goes_back(start: Offsets | None, end: Offsets | None) -> list[str]:
    """
    The Kafka partitions whose end lies before their start, or that the end no longer knows, in words.

    Either way a topic was made anew, or a checkpoint is older than its ledger. An unknown side shows nothing.
    """
    if start is None or end is None:
        return []
    ends = {position[:3]: position[3] for position in kafka_positions(end)}
    found = []
    for source_id, topic, partition, start_offset in sorted(kafka_positions(start)):
        end_offset = ends.get((source_id, topic, partition))
        if end_offset is None:
            found.append(f"{topic}-{partition} was at {start_offset} and is gone")
        elif end_offset < start_offset:
            found.append(f"{topic}-{partition} was at {start_offset} and goes back to {end_offset}")
    return found


def as_current(offsets: Offsets) -> list[CurrentOffset]:
    """One row a topic and partition for Kafka, one a source otherwise, in order."""
    rows: list[CurrentOffset] = []
    for source_id in sorted(offsets, key=_source_order):
        offset = offsets[source_id]
        partitions = [CurrentOffset(*position) for position in sorted(kafka_positions({source_id: offset}))]
        rows += partitions or [CurrentOffset(source_id, None, None, offset)]
    return rows


def kafka_positions(offsets: Offsets) -> Iterator[tuple[str, str, int, int]]:
    """Source id, topic, partition and position of everything in ``offsets`` that is Kafka's."""
    for source_id, offset in offsets.items():
        if is_kafka(offset):
            for topic, partitions in offset.items():
                for partition, position in partitions.items():
                    yield source_id, topic, int(partition), position


def _source_order(source_id: str) -> tuple[bool, int, str]:
    if source_id.isdecimal():
        return False, int(source_id), ""
    return True, 0, source_id


def _version_and_lines(text: str, known: tuple[int, ...], where: str) -> tuple[int, list[str]]:
    first, *lines = _LINE_END.split(text)
    match = _VERSION.fullmatch(first)
    if not match:
        _malformed(where, "is empty." if not text else "does not begin with a version line such as v1.")
    version = int(match[1])
    if version not in known:
        raise CheckpointError(
            "CHECKPOINT_VERSION",
            f"{where} has version {version}, and versions {known[0]} to {known[-1]} are known here.",
            "Nothing was written.",
            "The checkpoint was made by a Spark newer than this pgonce knows. Install a newer pgonce.",
        )
    # A line end at the end of the file opens no further line.
    if lines and not lines[-1]:
        lines.pop()
    return version, lines


def _json_object(text: str, where: str, part: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        _malformed(where, f"is damaged: {part} is not JSON.", error)
    if not isinstance(value, dict):
        _malformed(where, f"is damaged: {part} is not a JSON object.")
    return value


def _malformed(where: str, what: str, cause: Exception | None = None) -> NoReturn:
    raise CheckpointError(
        "CHECKPOINT_MALFORMED",
        f"{where} {what}",
        "Nothing was written.",
        "The file was cut short or changed by something other than Spark. Restore the checkpoint, or start "
        "the query on a new checkpoint from the stored offsets.",
    ) from cause
