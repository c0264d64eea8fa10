"""
Parse single files of a checkpoint.

Pure: runs anywhere. Invariant: a file that was cut short, or that a newer Spark wrote, is an error; it never gives half
a value.

Formats: Spark's ``OffsetSeqLog`` (versions 1 and 2), ``CommitLog`` (1 to 3), ``StreamMetadata``, and the Kafka source's
``KafkaSourceInitialOffsetWriter``.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from ..errors import CheckpointError
from ..offsets import Offsets, is_kafka, parse_offset

# Lines as Spark's own reader sees them: str.splitlines() would also cut at U+2028, which JSON may contain.
_LINE_END = re.compile(r"\r\n|\r|\n")
_VERSION = re.compile(r"v([1-9][0-9]*)", re.ASCII)
_QUERY_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII | re.IGNORECASE)


class MalformedFileError(CheckpointError):
    """A file of a checkpoint that was cut short, or changed by something other than Spark."""


@dataclass(frozen=True)
class OffsetLogEntry:
    """Which file of ``offsets/`` is meant: its number, and the hash of its bytes in hexadecimal."""

    batch_id: int
    sha256: str


@dataclass(frozen=True)
class OffsetLog:
    """One file ``offsets/N``: where each source's range of batch N ends. ``text`` is the whole file."""

    version: int
    metadata: dict[str, Any]
    offsets: Offsets
    text: str

    @property
    def sha256(self) -> str:
        """The hash of the file's bytes, in hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def is_continuous(self) -> bool:
        """Whether a continuous query wrote it: such a query leaves the metadata line empty."""
        return not _LINE_END.split(self.text)[1]


@dataclass(frozen=True)
class CommitLog:
    """One file ``commits/N``: Spark's note that batch N is done."""

    version: int
    metadata: dict[str, Any]
    text: str


def parse_offset_log(text: str, where: str = "The offset log entry") -> OffsetLog:
    """
    Read one file ``offsets/N``.

    :param where: what to call the file in an error, as the start of a sentence.
    :raises CheckpointError: PGONCE_TOO_OLD, CHECKPOINT_MALFORMED.
    """
    version, lines = _version_and_lines(text, (1, 2), where)
    if not lines:
        _malformed(where, "ends before its metadata line.")
    metadata = _json_object(lines[0], where, "the metadata line") if lines[0] else {}
    # Spark plans no batch for a query that has no sources, so this file was cut short.
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

    :raises CheckpointError: PGONCE_TOO_OLD, CHECKPOINT_MALFORMED.
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


def query_id_text(query_id: str) -> str:
    """What the checkpoint's file ``metadata`` holds."""
    return json.dumps({"id": query_id}, separators=(",", ":"))


def parse_initial_offset(data: bytes, where: str = "The initial offset") -> Any:
    """
    Read a file ``sources/<i>/0``: the offset where batch 0 began; None if the file holds something else.

    Only the Kafka source keeps its start there, marked by a NUL byte. Under the same name, the file source
    keeps a list of files, and the rate source a time.

    :raises CheckpointError: PGONCE_TOO_OLD, CHECKPOINT_MALFORMED.
    """
    if not data.startswith(b"\x00"):
        return None
    text = decode(data[1:], where)
    # Spark 2.1 wrote no version line, and later versions still read such files.
    if text.startswith("v"):
        _, lines = _version_and_lines(text, (1,), where)
        text = "\n".join(lines)
    offset = parse_offset(text)
    # A pattern (subscribePattern) that no topic matches yet has no partition.
    if offset != {} and not is_kafka(offset):
        _malformed(where, "does not name topics, partitions and offsets.")
    return offset


def decode(data: bytes, where: str) -> str:
    """Turn a file's bytes into text, such that encoding it again gives the same bytes."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        _malformed(where, f"is not UTF-8 from byte {error.start} on.", error)


def _version_and_lines(text: str, known: tuple[int, ...], where: str) -> tuple[int, list[str]]:
    first, *lines = _LINE_END.split(text)
    match = _VERSION.fullmatch(first)
    if not match:
        _malformed(where, "is empty." if not text else "does not begin with a version line such as v1.")
    version = int(match[1])
    if version not in known:
        raise CheckpointError.usual(
            "PGONCE_TOO_OLD",
            f"{where} has version {version}; this pgonce knows versions {known[0]} to {known[-1]}.",
            "The checkpoint was written by a newer Spark than this pgonce knows. Install a newer pgonce.",
        )
    # A line end at the end of the file begins no further line.
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
    raise MalformedFileError.usual(
        "CHECKPOINT_MALFORMED",
        f"{where} {what}",
        "The file was cut short or changed by something other than Spark. If it is in offsets/ or commits/, run "
        "`pgonce doctor` and `pgonce recover`. Otherwise restore the checkpoint, or, if the query keeps no state, "
        "start it on a new checkpoint from the stored offsets.",
    ) from cause
