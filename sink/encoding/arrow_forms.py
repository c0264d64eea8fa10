"""
Convert a Spark column's values to the Arrow array that is encoded, and refuse values that Postgres cannot hold.

Runs in tasks and in the driver. Pure. Invariant: an array that is returned holds the values that came in; a
value that Postgres would refuse, or that would change on its way, is refused here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import types as t

from . import compute as pc
from .encoded_types import TEXTS, TimeType
from .json_texts import NulInJsonError, json_texts

_FORMS: dict[type[t.DataType], pa.DataType] = {
    t.BooleanType: pa.bool_(),
    t.ByteType: pa.int8(),
    t.ShortType: pa.int16(),
    t.IntegerType: pa.int32(),
    t.LongType: pa.int64(),
    t.FloatType: pa.float32(),
    t.DoubleType: pa.float64(),
    t.DateType: pa.date32(),
    t.TimestampType: pa.timestamp("us", tz="UTC"),
    t.TimestampNTZType: pa.timestamp("us"),
    t.DayTimeIntervalType: pa.duration("us"),
    # Spark sends nanoseconds; those of time(6) and below end in zeros, else the cast raises.
    TimeType: pa.time64("us"),
}

# 4714-11-24 BC to 5874897-12-31. Beyond these, Postgres raises errors that name no row, and the first day and the first
# microsecond of the binary format even become "-infinity". Spark's last microsecond is within the range; but half a
# minute before it begins what Debezium sends for "infinity", which would become a day in the year 294247.
_FIRST_DAY, _LAST_DAY = -2_440_588, 2_145_042_905
_FIRST_MICROSECOND, _LAST_MICROSECOND = _FIRST_DAY * 86_400_000_000, 9_223_372_036_825_199_999


class UnfitValueError(Exception):
    """A value that Postgres cannot hold, somewhere in an array: (code, what the value is, remedy)."""


UNFIT_CODES = ("NUL_IN_TEXT", "TEXT_NOT_UTF8", "TIME_OUT_OF_RANGE", "VALUE_UNENCODABLE")
"""The codes of this error."""


def prepare(array: pa.Array, data_type: t.DataType, postgres_type: str) -> pa.Array:
    """
    Return the array in the Arrow type that is encoded for ``postgres_type`` (JSON texts for ``jsonb``; a column of
    texts is such JSON already).

    :raises UnfitValueError: if there is a value that Postgres cannot hold.
    """
    if postgres_type == "jsonb":
        return array.cast(pa.large_string()) if isinstance(data_type, t.StringType) else _json(array, data_type)
    array = in_form(array, data_type)
    _check(array.flatten() if isinstance(data_type, t.ArrayType) else array)
    return array


def in_form(array: pa.Array, data_type: t.DataType) -> pa.Array:
    """
    Return the array in the Arrow type of a column that is not JSON.

    :raises UnfitValueError: if there is a value that this type does not hold.
    """
    form = arrow_form(data_type, array.type)
    try:
        return array if array.type == form else array.cast(form)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unencodable(f"a value that does not fit, sent as Arrow's {array.type}") from error


def unfit_values(array: pa.Array, data_type: t.DataType, postgres_type: str) -> Iterator[tuple[int, UnfitValueError]]:
    """
    Find all values that make :func:`prepare` raise, in their order: the index of each, and what is wrong with it.

    Halves are looked into only where something was found, so few bad values cost little more than one does.
    """
    ranges = [(0, len(array))]
    while ranges:
        start, end = ranges.pop()
        try:
            is_list = isinstance(data_type, t.ArrayType)
            part = copied(array, [(start, end)]) if is_list else array.slice(start, end - start)
            prepare(part, data_type, postgres_type)
        except UnfitValueError as unfit:
            if end - start == 1:
                yield start, unfit
            elif end > start:
                middle = (start + end) // 2
                ranges += [(middle, end), (start, middle)]


def copied(array: pa.Array, ranges: Sequence[tuple[int, int]]) -> pa.Array:
    """
    Return these ranges of an array as one array, which holds nothing of the rest.

    A slice of lists would still have its neighbours' elements, and Arrow would also cast them.
    """
    # Not by take, which does not know every type. Of a single slice no copy is made, so there is an empty one more.
    return pa.concat_arrays([array.slice(start, end - start) for start, end in (*ranges, (0, 0))])


def _json(array: pa.Array, data_type: t.DataType) -> pa.Array:
    try:
        return pa.array(json_texts(array, data_type), pa.large_string())
    except NulInJsonError as error:
        raise UnfitValueError("NUL_IN_TEXT", *_NUL) from error
    except UnicodeDecodeError as error:
        raise UnfitValueError("TEXT_NOT_UTF8", *_NOT_UTF8) from error
    except (ValueError, pa.ArrowNotImplementedError) as error:
        raise _unencodable(f"a value that JSON cannot represent: {error}") from error


def arrow_form(data_type: t.DataType, sent: pa.DataType) -> pa.DataType:
    """The type of Arrow in which values of Spark's type are encoded, where Spark has ``sent`` another one for texts."""
    if isinstance(data_type, t.ArrayType):
        return pa.list_(arrow_form(data_type.elementType, getattr(sent, "value_type", sent)))
    if isinstance(data_type, t.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    # spark.sql.execution.arrow.useLargeVarTypes decides which of the two is sent; anything else, such as a view,
    # becomes the large one.
    if isinstance(data_type, t.BinaryType):
        return sent if pa.types.is_binary(sent) else pa.large_binary()
    if isinstance(data_type, TEXTS):
        return sent if pa.types.is_string(sent) else pa.large_string()
    return _FORMS[type(data_type)]


def _check(values: pa.Array) -> None:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        _check_text(values)
    elif pa.types.is_date32(values.type):
        _check_range(values.cast(pa.int32()), _FIRST_DAY, _LAST_DAY)
    elif pa.types.is_timestamp(values.type):
        _check_range(values.cast(pa.int64()), _FIRST_MICROSECOND, _LAST_MICROSECOND)


def _check_range(numbers: pa.Array, first: int, last: int) -> None:
    found = pc.min_max(numbers)
    low, high = found["min"].as_py(), found["max"].as_py()
    if low is not None and (low < first or high > last):
        raise UnfitValueError(
            "TIME_OUT_OF_RANGE",
            "a time outside the range of Postgres, which begins at 4714-11-24 BC (dates end at 5874897-12-31), or what "
            "Debezium sends for infinity",
            "Set such values to null or to a bound in Spark.",
        )


def _check_text(texts: pa.Array) -> None:
    try:
        # Spark does not look at what it casts from binary to string.
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UnfitValueError("TEXT_NOT_UTF8", *_NOT_UTF8) from error
    # To look for a zero byte among all bytes of the column takes 0.5 ms for 1M rows; to search every text, 18 ms.
    if _lowest_byte(texts) == 0 and pc.any(pc.match_substring(texts, "\0")).as_py():
        raise UnfitValueError("NUL_IN_TEXT", *_NUL)


def _lowest_byte(texts: pa.Array) -> int | None:
    _, offsets, data = texts.buffers()
    if not len(texts) or data is None:
        return None
    width = pa.int64() if pa.types.is_large_string(texts.type) else pa.int32()
    ends = pa.Array.from_buffers(width, len(texts) + 1, [None, offsets], offset=texts.offset)
    start, end = ends[0].as_py(), ends[-1].as_py()
    return pc.min(pa.Array.from_buffers(pa.uint8(), end - start, [None, data], offset=start)).as_py()


_NUL = (
    "a string with a NUL character, which Postgres cannot store",
    "Remove it in Spark, for example with translate(the column, char(0), ''), or write it as binary.",
)
_NOT_UTF8 = (
    "a string that is not UTF-8",
    "Repair it in Spark, for example with make_valid_utf8(the column), or write it as binary.",
)


def _unencodable(value: str) -> UnfitValueError:
    return UnfitValueError(
        "VALUE_UNENCODABLE", value, "Cast the column in Spark to a type that page `types` of the documentation lists."
    )


def as_stream(batch: pa.RecordBatch) -> bytes:
    """These rows as an Arrow stream, which says of which types they are."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return bytes(sink.getvalue())
