"""
Where does each row of a binary COPY's body begin, and which fields does it have?

Pure: runs in the commit. Invariant: a row's bytes are never changed.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

_FIELD_COUNT = struct.Struct(">h")
_LENGTH = struct.Struct(">i")


def body_rows(body: memoryview) -> Iterator[tuple[int, int]]:
    """Where each row of a COPY body begins and ends: a count of fields, then each with its length (-1: null)."""
    at = 0
    while at < len(body):
        start = at
        (fields,) = _FIELD_COUNT.unpack_from(body, at)
        at += _FIELD_COUNT.size
        for _ in range(fields):
            (length,) = _LENGTH.unpack_from(body, at)
            at += _LENGTH.size + max(length, 0)
        yield start, at


def body_fields(row: memoryview) -> list[bytes | None]:
    """The fields of one of these rows."""
    (count,) = _FIELD_COUNT.unpack_from(row)
    at, fields = _FIELD_COUNT.size, []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(row, at)
        at += _LENGTH.size
        fields.append(None if length < 0 else bytes(row[at : at + length]))
        at += max(length, 0)
    return fields
