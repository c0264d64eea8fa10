"""
How does a row that cannot be encoded read as one JSON object?

Runs in tasks and in the driver. Pure. Invariant: the text is JSON that jsonb takes, and ``jsonb_to_record`` reads every
value that could have been encoded back from it as the encoder would have written it; no byte of the others is lost.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Sequence
from json.encoder import encode_basestring
from typing import Any

import pyarrow as pa
from pyspark.sql import types as t

from .arrow_forms import UnfitValueError, copied, in_form
from .encoded_types import EncodedColumn
from .json_texts import DAY, clock, grouped, json_texts, quoted, within, year_and_day

_TEXTS = (t.StringType, t.CharType, t.VarcharType)
_NO_FORM = (ValueError, pa.ArrowNotImplementedError, UnfitValueError)


def row_texts(arrays: Sequence[pa.Array], struct_type: t.StructType, columns: Sequence[EncodedColumn]) -> list[str]:
    """
    Return one JSON object for each row of these columns.

    A text that no JSON of Postgres can hold is ``{"base64": its bytes}``. A value with such a text inside is ``{"json":
    its JSON text}``, in which a NUL is escaped, or if it has none, ``{"arrow": an Arrow stream}`` in base64, of one
    column with this one value.
    """
    texts = [
        [f"{quoted(field.name)}: {text}" for text in _column_texts(array, field.dataType, column.postgres_type)]
        for array, field, column in zip(arrays, struct_type, columns, strict=True)
    ]
    return ["{" + ", ".join(row) + "}" for row in zip(*texts, strict=True)]


def _column_texts(array: pa.Array, data_type: t.DataType, postgres_type: str) -> list[str]:
    try:
        return _texts(array, data_type, postgres_type)
    except _NO_FORM:
        return [_any_text(copied(array, [(row, row + 1)]), data_type, postgres_type) for row in range(len(array))]


def _any_text(one: pa.Array, data_type: t.DataType, postgres_type: str) -> str:
    try:
        return _texts(one, data_type, postgres_type)[0]
    except UnfitValueError:
        return _wrapped("arrow", _base64(_stream(one)))
    except _NO_FORM:
        if isinstance(data_type, _TEXTS):
            return _wrapped("base64", _base64(_bytes_of(one)))
    try:
        (text,) = json_texts(one, data_type, encode_basestring)
        return _wrapped("json", text or "null")
    except _NO_FORM:
        return _wrapped("arrow", _base64(_stream(one)))


def _wrapped(kind: str, text: str) -> str:
    return f"{{{encode_basestring(kind)}: {encode_basestring(text)}}}"


def _base64(value: bytes) -> str:
    return b64encode(value).decode()


def _bytes_of(one: pa.Array) -> bytes:
    text = one if pa.types.is_string(one.type) else one.cast(pa.large_string())
    value: bytes = text.cast(pa.large_binary())[0].as_py()
    return value


def _stream(one: pa.Array) -> bytes:
    batch = pa.record_batch([one], names=["value"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())


def _texts(array: pa.Array, data_type: t.DataType, postgres_type: str) -> list[str]:
    """:raises Exception: one of :data:`_NO_FORM`, for a value that cannot be read back from JSON."""
    is_json = postgres_type == "jsonb"
    texts = json_texts(array, data_type) if is_json else _readable(in_form(array, data_type), data_type)
    return ["null" if text is None else text for text in texts]


def _readable(array: pa.Array, data_type: t.DataType) -> list[str | None]:
    """As :func:`json_texts`, except for types that Postgres reads in another form."""
    if isinstance(data_type, t.ArrayType):
        parts = _readable(within(array, array.values), data_type.elementType)
        lists = grouped(array, "[", ["null" if part is None else part for part in parts], "]")
        return [text if valid else None for text, valid in zip(lists, array.is_valid().to_pylist(), strict=True)]
    if isinstance(data_type, t.BinaryType):
        return _each(lambda value: f'"\\\\x{value.hex()}"', array.to_pylist())
    if isinstance(data_type, t.DateType):
        return _each(lambda days: _dated(days, ""), array.cast(pa.int32()).to_pylist())
    if isinstance(data_type, t.TimestampType):
        return _each(lambda us: _instant(us, "+00:00"), array.cast(pa.int64()).to_pylist())
    if isinstance(data_type, t.TimestampNTZType):
        return _each(lambda us: _instant(us, ""), array.cast(pa.int64()).to_pylist())
    texts = json_texts(array, data_type)
    if isinstance(data_type, (t.FloatType, t.DoubleType)):
        # A number in jsonb is a numeric, which has no negative zero.
        return ['"-0"' if text in ("-0", "-0.0") else text for text in texts]
    return texts


def _each(convert: Callable[[Any], str], values: Iterable[Any]) -> list[str | None]:
    return [None if value is None else convert(value) for value in values]


def _dated(days: int, rest: str) -> str:
    """A date as Postgres reads it: it takes no sign, and its years before Christ begin at 1."""
    year, day = year_and_day(days)
    return f'"{year:04d}-{day}{rest}"' if year > 0 else f'"{1 - year:04d}-{day}{rest} BC"'


def _instant(us: int, zone: str) -> str:
    days, rest = divmod(us, DAY)
    return _dated(days, f"T{clock(rest)}{zone}")
