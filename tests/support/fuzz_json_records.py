"""
Look for records on whose border the decoder goes wrong: `make fuzz SECONDS=3600`.

Runs by itself, with atheris. What it proves of any bytes: no error but a refusal; what becomes of a record does not
depend on the others that are decoded with it; and a record that is taken is one object, as another parser reads it.
"""

from __future__ import annotations

import json
import sys

import atheris

with atheris.instrument_imports(include=["pgonce.sink.decoding"]):
    from pgonce.sink.decoding.fields import DecodedColumn, Form
    from pgonce.sink.decoding.json_records import JsonRecords

from pyspark.sql import types as t

COLUMNS = [
    DecodedColumn("id", ("id",), t.LongType(), required=True),
    DecodedColumn("text", ("text",), t.StringType()),
    DecodedColumn("inner", ("o", "inner"), t.DoubleType()),
    DecodedColumn("json", ("json",), t.StringType(), Form.JSON),
    DecodedColumn("n", ("n",), t.StringType(), Form.DIGITS),
    DecodedColumn("at", ("at",), t.TimestampType()),
    DecodedColumn("list", ("list",), t.ArrayType(t.StringType())),
]
RECORDS = JsonRecords(COLUMNS, refuses=frozenset())
# Pieces of which records that nearly are ones are made.
PIECES = [
    b'{"id":1}', b'{"id":', b'"id"', b'"i\\u0064"', b'"text":"', b'\\"', b'":', b'" :', b"{", b"}", b"[", b"]", b",",
    b":", b"1", b"-0", b"1e400", b"NaN", b"null", b'"o":{"inner":', b'"json":', b'"n":1.50', b'"list":["a",null]',
    b'"at":"2026-01-31T12:00:00Z"', b'"at":"2026-01-31T12:00:00"', b"\n", b"\r\n", b" ", b"\0", b"\xff",
    b"\xef\xbb\xbf", b'"\\ud800"', b'"\\u0000"', b"9007199254740993", b"true",
]  # fmt: skip


def decoded(values: list[bytes]) -> list[tuple[object, ...] | None]:
    """The row of each record, or None for one that is refused."""
    found = RECORDS.decode(values)
    rows = list(zip(*(array.to_pylist() for array in found.arrays), strict=True))
    return [None if row in found.refused else values for row, values in enumerate(rows)]


def pairs_of(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """An object, which has no name twice."""
    assert len(dict(pairs)) == len(pairs), "a name that comes twice was taken"
    return dict(pairs)


def look_at(data: bytes) -> None:
    """One round of the fuzzer."""
    dice = atheris.FuzzedDataProvider(data)
    values = []
    for _ in range(dice.ConsumeIntInRange(1, 4)):
        parts = []
        for _ in range(dice.ConsumeIntInRange(0, 12)):
            is_piece = dice.ConsumeIntInRange(0, 3)
            parts.append(PIECES[dice.ConsumeIntInRange(0, len(PIECES) - 1)] if is_piece else dice.ConsumeBytes(3))
        values.append(b"".join(parts))
    together = decoded(values)
    assert together == [row for value in values for row in decoded([value])], "records depend on each other"
    for value, row in zip(values, together, strict=True):
        if row is not None:
            read = json.loads(value.decode(errors="replace"), object_pairs_hook=pairs_of)
            assert isinstance(read, dict)
            assert read["id"] == row[0]


atheris.Setup(sys.argv, look_at)
atheris.Fuzz()
