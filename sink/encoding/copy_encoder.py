"""
Encode Arrow record batches as the body of a binary COPY, and find the rows and fields of such a body again.

Encoding runs in tasks (in the driver, for foreachBatch), and bodies are read there and in the commit. Invariant: every
row of a batch is in the bytes, with the value that Spark held, or an error names the column and the row and there are
no bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from io import BytesIO
from typing import Any

import pgpq
import pyarrow as pa
from pgpq import encoders, schema
from pyspark.sql import types as t

from ..errors import EncodingError
from .arrow_forms import UnfitValueError, prepare, unfit_values
from .encoded_types import EncodedColumn, encoded_columns

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = b"\xff\xff"

NOTHING_WRITTEN = "Nothing of this batch was written."

_FIELD_COUNT = struct.Struct(">h")
_LENGTH = struct.Struct(">i")

# pgpq fills one buffer a call, and small ones are fast (1M rows, 6 columns: 134 ms whole, 108 ms in slices).
_SLICE_ROWS = 16_384

# An array field in a row of one: field count (2), length (4), then dimensions (4), flags (4), the element's
# oid (4).
_FIELD_START = 6
_OID_START, _OID_END = 8, 12
_TIMESTAMPTZ_OID = (1184).to_bytes(4, "big")


class CopyEncoder:
    """
    Encodes Arrow record batches of one Spark schema as rows of a binary COPY.

    :param struct_type: the frame's schema; batches have its columns in its order.
    :param extra: bigint constants that stand in front of each row, in their order (a staged row's task
        attempt).
    :raises TypeMappingError: for a column that Postgres cannot hold.

    ``columns`` says how each column is encoded, ``rows`` counts the rows encoded so far.
    """

    def __init__(self, struct_type: t.StructType, *, extra: Mapping[str, int] | None = None) -> None:
        self.columns = encoded_columns(struct_type)
        self.rows = 0
        self._constants = [pa.scalar(value, pa.int64()) for value in (extra or {}).values()]
        self._postgres_types = ["int8"] * len(self._constants) + [c.postgres_type for c in self.columns]

    def encode(self, batch: pa.RecordBatch) -> bytes:
        """
        Return the batch's rows: no header, no trailer, so that bodies can follow one another between both.

        :raises EncodingError: naming the column and the row, counted from 1 over all batches of this encoder.
        """
        arrays = [pa.repeat(constant, batch.num_rows) for constant in self._constants]
        arrays += [self._prepared(*pair) for pair in zip(batch.columns, self.columns, strict=True)]
        body = _rows(arrays, self._postgres_types)
        self.rows += batch.num_rows
        return body

    def _prepared(self, array: pa.Array, column: EncodedColumn) -> pa.Array:
        try:
            prepared = prepare(array, column.data_type, column.postgres_type)
        except UnfitValueError as unfit:
            code, value, remedy = unfit.args
            row = self.rows + 1 + next(unfit_values(array, column.data_type, column.postgres_type), (0, None))[0]
            what = f"In row {row} of its task, column {column.name!r} (Spark's {column.spark_type}) has {value}."
            raise EncodingError(code, what, NOTHING_WRITTEN, remedy) from unfit
        return _timestamptz_arrays(prepared) if column.postgres_type == "timestamptz[]" else prepared


def _rows(arrays: list[pa.Array], postgres_types: list[str]) -> bytes:
    # Named by position: a frame's column may have the name of one of ours, and pgpq finds encoders by name.
    fields = [pa.field(str(position), array.type) for position, array in enumerate(arrays)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))
    builders = {f.name: _builder(f, p) for f, p in zip(fields, postgres_types, strict=True)}
    encoder = pgpq.ArrowToPostgresBinaryEncoder.new_with_encoders(batch.schema, builders)
    encoder.write_header()
    body = BytesIO()
    for start in range(0, len(batch), _SLICE_ROWS):
        body.write(encoder.write_batch(batch.slice(start, _SLICE_ROWS)))
    # write_batch may keep rows back. They come with finish(), before the trailer; an encoder ends there, so
    # each batch has its own (0.1 ms).
    body.write(memoryview(encoder.finish())[: -len(TRAILER)])
    return body.getvalue()


def _builder(field: pa.Field, postgres_type: str) -> Any:
    if postgres_type == "jsonb":
        return encoders.LargeStringEncoderBuilder.new_with_output(field, schema.Jsonb())
    return pgpq.ArrowToPostgresBinaryEncoder.infer_encoder(field)


def _timestamptz_arrays(array: pa.Array) -> pa.Array:
    """Return each array as the bytes of its field: pgpq 0.12 calls the elements timestamp (42804)."""
    rows = _rows([array], [""])
    fields: list[bytes | None] = []
    at = 0
    for valid in array.is_valid().to_pylist():
        at += _FIELD_START
        if not valid:
            fields.append(None)
            continue
        length = int.from_bytes(rows[at - 4 : at], "big")
        field = rows[at : at + length]
        fields.append(field[:_OID_START] + _TIMESTAMPTZ_OID + field[_OID_END:])
        at += length
    return pa.array(fields, pa.large_binary())


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
