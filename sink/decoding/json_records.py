"""
Decode JSON records, many at a time, into columns of Arrow.

Runs in tasks, and on the driver for foreachBatch. Invariants: one record is one JSON object, and becomes one row or is
refused with the reason; what is read is what stands there, or the record is refused: numbers keep all their digits, a
time has the offset that its column needs, and of a name that an object has twice, neither value is taken. A reason
names fields and types, and repeats no value.

https://www.rfc-editor.org/rfc/rfc8259
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from typing import Any

import msgspec
import pyarrow as pa

from ..encoding import compute as pc
from .fields import DecodedColumn, Fields, Form, UnknownFieldError
from .values import Refusal, made

SLICE = 2048
"""Records that are decoded at a time: their objects fit into the processor's cache (1.6 against 2.6 us a record)."""


@dataclass
class Decoded:
    """Columns of some records, in the order of the columns; the rows of ``refused`` are null in all of them."""

    arrays: list[pa.Array]
    refused: dict[int, Refusal] = field(default_factory=dict)


# A deeply nested record ends in RecursionError.
MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class JsonRecords:
    """
    Decodes records for these columns.

    :param refuses: the names of fields that no column takes, and that are not passed over; None if no field is.
    """

    def __init__(self, columns: Sequence[DecodedColumn], *, refuses: frozenset[str] | None = None) -> None:
        self._columns = columns
        self._fields = Fields.of(columns, refuses)
        self._decode = msgspec.json.Decoder(self._fields.struct("Record")).decode
        # To look for what is missing takes as long as decoding, and most records have all fields.
        self._decode_whole = msgspec.json.Decoder(self._fields.struct("Whole", whole=True)).decode
        self._are_json = [column.form is Form.JSON for column in columns]
        self._gets = [self._fields.getter(column.path) for column in columns]
        self._empty = _Missing()

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        """
        The rows of these records; those without a value have a null in each column.

        :raises UnknownFieldError: if a record has a field that no column takes, and that is not to be passed over.
        """
        parts = [self._decode_some(values[start : start + SLICE]) for start in range(0, len(values), SLICE)]
        parts = parts or [self._decode_some([])]
        arrays = [pa.concat_arrays(arrays) for arrays in zip(*(part.arrays for part in parts), strict=True)]
        refused = {number * SLICE + row: why for number, part in enumerate(parts) for row, why in part.refused.items()}
        return Decoded(arrays, refused)

    def _decode_some(self, values: Sequence[bytes | None]) -> Decoded:
        refused: dict[int, Refusal] = {}
        is_whole = True
        try:
            rows: list[Any] = list(map(self._decode_whole, values))  # type: ignore[arg-type]
        except (*MALFORMED, TypeError):
            rows = [self._one(row, value, refused) for row, value in enumerate(values)]
            is_whole = False
        lists = [list(map(get, rows)) for get in self._gets]
        missing = 0
        if not is_whole:
            missing = sum(value is msgspec.UNSET for found in lists for value in found)
            lists = [[None if value is msgspec.UNSET else value for value in found] for found in lists]
        there = {row: value for row, value in enumerate(values) if value is not None and row not in refused}
        within = _names_within([raw for raws in compress(lists, self._are_json) for raw in raws if raw is not None])
        # What an object would have that is itself missing is not counted.
        is_counted = within is not None and (is_whole or self._fields.is_flat)
        expected = len(there) * self._fields.count - missing + (within or 0) if is_counted else None
        self._refuse_doubled(there, expected, refused)
        arrays = []
        for column, found in zip(self._columns, lists, strict=True):
            array, unfit = made(column, found)
            refused |= {**unfit, **refused}
            # What is read as JSON may be its null.
            if column.required and column.form is Form.JSON and array.null_count:
                nulls = (row for row, is_null in enumerate(array.is_null().to_pylist()) if is_null)
                why = Refusal(column.name, f"Field {'.'.join(column.path)!r} is null, and the column cannot be.")
                refused |= {row: why for row in nulls if values[row] is not None and row not in refused}
            arrays.append(array)
        if refused:
            keep = pa.array([row not in refused for row in range(len(rows))])
            arrays = [pc.if_else(keep, array, pa.nulls(len(array), array.type)) for array in arrays]
        return Decoded(arrays, refused)

    def _one(self, row: int, value: bytes | None, refused: dict[int, Refusal]) -> Any:
        """A record by itself; one without a value, or one that is refused, has no fields."""
        if value is None:
            return self._empty
        try:
            return self._decode(value)
        except MALFORMED as error:
            refused[row] = self._why(value, error)
            return self._empty

    def _why(self, value: bytes, error: Exception) -> Refusal:
        """Why the record is refused; the first column that its value does not fit, if it is an object."""
        if not value:
            return Refusal("", "It is empty.")
        try:
            found = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        except MALFORMED as malformed:
            return Refusal("", f"It is not a JSON object: {malformed}.")
        if has_double(value):
            return Refusal("", DOUBLED)
        try:
            unknown = self._fields.unknown(found)
        except MALFORMED as malformed:
            return Refusal("", f"It is not a JSON object: {malformed}.")
        if unknown:
            raise UnknownFieldError(*unknown)
        for column in self._columns:
            try:
                self._fields.read_one(found, column)
            except MALFORMED as unfit:
                return Refusal(column.name, f"Field {'.'.join(column.path)!r} does not fit: {unfit}.")
        return Refusal("", f"{error}.")

    def _refuse_doubled(self, there: dict[int, bytes], expected: int | None, refused: dict[int, Refusal]) -> None:
        """
        Refuse records with an object that has a name twice: msgspec takes the last one, and says nothing.

        :param expected: how many fields were read, if that is known.
        """
        # Without white space, every name is followed by a colon. So names are counted, and what looks like one within a
        # text: if there are no more than the fields that were read, no name is there twice.
        if b"".join(there.values()).translate(None, b" \t\r\n").count(b'":') == expected:
            return
        refused |= {row: Refusal("", DOUBLED) for row, value in there.items() if has_double(value)}


@lru_cache(maxsize=128)
def json_records(columns: tuple[DecodedColumn, ...], *, refuses: frozenset[str] | None) -> JsonRecords:
    """The same one for the same columns, because it takes long to make."""
    return JsonRecords(columns, refuses=refuses)


def _names_within(raws: Sequence[msgspec.Raw]) -> int | None:
    """How many names these JSON values have, one of each that an object has twice; None if that takes longer to say."""
    # An escaped quote or colon would be written in another way, and its text counted as a name.
    if b"\\" in b"".join(raws):
        return None
    try:
        return msgspec.json.encode(list(map(_PARSE, raws))).count(b'":')
    except MALFORMED:
        return None


_PARSE = msgspec.json.Decoder().decode


class _Missing:
    """Stands for a record without any field."""

    def __getattr__(self, _: str) -> Any:
        return None


DOUBLED = "An object in it has a name twice, and one of the two values would be lost."
# Every string, so that it stays clear where one begins; those that are names have a colon.
_STRING = re.compile(rb'"([^"]*)"(\s*:)?')


def has_double(value: bytes) -> bool:
    """Whether an object in this JSON has a name twice, or is nested too deeply to tell."""
    names = [name for name, colon in _STRING.findall(value) if colon]
    # A name may be written in several ways where characters are escaped.
    if b"\\" not in value and len(set(names)) == len(names):
        return False

    def pairs(found: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in found}) < len(found):
            raise _DoubledError

    try:
        text = value.decode(errors="replace")
        json.loads(text, object_pairs_hook=pairs, parse_int=len, parse_float=len)
    except (_DoubledError, RecursionError):
        return True
    return False


class _DoubledError(Exception):
    pass
