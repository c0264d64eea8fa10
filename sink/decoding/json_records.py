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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from ..encoding import compute as pc
from .decoded_columns import DecodedColumn, Form, arrow_type

SLICE = 2048
"""Records that are decoded at a time: their objects fit into the processor's cache (1.6 against 2.6 us a record)."""


@dataclass(frozen=True)
class Refusal:
    """Why a record is refused: the column that it is about, if it is about one, and a sentence."""

    column: str
    message: str


class UnknownFieldError(Exception):
    """A record has a field that no column takes: its path, and a type of Postgres that would fit its value."""

    def __init__(self, path: str, fits: str) -> None:
        super().__init__(path, fits)
        self.path, self.fits = path, fits


@dataclass
class Decoded:
    """Columns of some records, in the order of the columns; the rows of ``refused`` are null in all of them."""

    arrays: list[pa.Array]
    refused: dict[int, Refusal] = field(default_factory=dict)


_WHOLE = {t.ShortType: 16, t.IntegerType: 32, t.LongType: 64}
_READ_AS: dict[type[t.DataType], Any] = {
    t.BooleanType: bool,
    t.FloatType: float,
    t.DoubleType: float,
    t.BinaryType: bytes,
    t.DecimalType: Decimal,
    **{kind: Annotated[int, msgspec.Meta(ge=-(2 ** (n - 1)), le=2 ** (n - 1) - 1)] for kind, n in _WHOLE.items()},
}


def read_as(data_type: t.DataType, form: Form) -> Any:
    """The type of Python as which a value is read, by msgspec's rules."""
    if form is Form.JSON:
        return msgspec.Raw
    if isinstance(data_type, t.ArrayType):
        return list[read_as(data_type.elementType, form) | None]  # type: ignore[misc]
    if isinstance(data_type, t.MapType):
        return dict[str, str | None]
    return Decimal if form is Form.DIGITS else _READ_AS.get(type(data_type), str)


# A deeply nested record ends in RecursionError.
_MALFORMED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def or_null(kind: Any) -> Any:
    """The same type, which also takes null; raw JSON does so by itself."""
    return kind if kind is msgspec.Raw else kind | None


class JsonRecords:
    """
    Decodes records for these columns.

    :param ignores_extra: whether fields that no column takes are passed over.
    :param lenient: the columns that a record may lack although the table needs them.
    """

    def __init__(
        self, columns: Sequence[DecodedColumn], *, ignores_extra: bool = False, lenient: frozenset[str] = frozenset()
    ) -> None:
        self._columns = columns
        self._ignores_extra = ignores_extra
        self._required = [column.required and column.name not in lenient for column in columns]
        self._fields = _Fields.of(columns, self._required)
        forbids = not ignores_extra
        self._decode = msgspec.json.Decoder(self._fields.struct("Record", forbids=forbids)).decode
        # To look for what is missing takes as long as decoding, and most records have all fields.
        self._decode_whole = msgspec.json.Decoder(self._fields.struct("Whole", forbids=forbids, whole=True)).decode
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
        except (*_MALFORMED, TypeError):
            rows = [self._one(row, value, refused) for row, value in enumerate(values)]
            is_whole = False
        lists = [list(map(get, rows)) for get in self._gets]
        missing = 0
        if not is_whole:
            missing = sum(value is msgspec.UNSET for found in lists for value in found)
            lists = [[None if value is msgspec.UNSET else value for value in found] for found in lists]
        self._refuse_doubled([None if row in refused else value for row, value in enumerate(values)], missing, refused)
        arrays = []
        for column, required, found in zip(self._columns, self._required, lists, strict=True):
            array, unfit = made(column, found)
            refused |= {**unfit, **refused}
            # What is read as JSON may be its null.
            if required and column.form is Form.JSON and array.null_count:
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
        except _MALFORMED as error:
            refused[row] = self._why(value, error)
            return self._empty

    def _why(self, value: bytes, error: Exception) -> Refusal:
        """Why the record is refused; the first column that its value does not fit, if it is an object."""
        if not value:
            return Refusal("", "It is empty.")
        try:
            found = msgspec.json.decode(value, type=dict[str, msgspec.Raw])
        except _MALFORMED as malformed:
            return Refusal("", f"It is not a JSON object: {_said(malformed)}.")
        if has_double(value):
            return Refusal("", DOUBLED)
        if not self._ignores_extra and (unknown := self._fields.unknown(found)):
            raise UnknownFieldError(*unknown)
        for column in self._columns:
            try:
                self._fields.read_one(found, column, required=self._required[self._columns.index(column)])
            except _MALFORMED as unfit:
                return Refusal(column.name, f"Field {'.'.join(column.path)!r} does not fit: {_said(unfit)}.")
        return Refusal("", f"{_said(error)}.")

    def _refuse_doubled(self, values: Sequence[bytes | None], missing: int, refused: dict[int, Refusal]) -> None:
        """Refuse records with an object that has a name twice, of which msgspec takes the last one without a word."""
        there = [value for value in values if value is not None]
        # Without white space, every name is followed by a colon. So names are counted, and what looks like one within a
        # text: if there are no more than the fields that were read, no name is there twice.
        names = b"".join(there).translate(None, b" \t\r\n").count(b'":')
        if names == len(there) * self._fields.count - missing:
            return
        for row, value in enumerate(values):
            if value is not None and has_double(value):
                refused[row] = Refusal("", DOUBLED)


def made(column: DecodedColumn, values: list[Any]) -> tuple[pa.Array, dict[int, Refusal]]:
    """The array of values that were read for a column, and which of them do not fit: these are null in it."""
    make, unfit = _made_as(column), dict[int, Refusal]()
    try:
        return make(values), unfit
    except (*_UNFIT, _UnfitError):
        values = list(values)
    for row, value in enumerate(values):
        try:
            make([value])
        except (*_UNFIT, _UnfitError):
            values[row] = None
            unfit[row] = Refusal(column.name, f"Field {'.'.join(column.path)!r} is {_needed(column)}")
    return make(values), unfit


class _Missing:
    """Stands for a record without any field."""

    def __getattr__(self, _: str) -> Any:
        return None


DOUBLED = "An object in it has a name twice, and one of the two values would be lost."
_NAME = re.compile(rb'"([^"]*)"\s*:')


def has_double(value: bytes) -> bool:
    """Whether an object in this JSON has a name twice, or is nested too deeply to tell."""
    names = _NAME.findall(value)
    # A name may be written in several ways where characters are escaped.
    if b"\\" not in value and len(set(names)) == len(names):
        return False

    def pairs(found: list[tuple[str, Any]]) -> None:
        if len({name for name, _ in found}) < len(found):
            raise _DoubledError

    try:
        json.loads(value, object_pairs_hook=pairs, parse_int=len, parse_float=len)
    except (_DoubledError, RecursionError):
        return True
    return False


class _DoubledError(Exception):
    pass


class _UnfitError(Exception):
    pass


_UNFIT = (pa.ArrowException, UnicodeError, ValueError, OverflowError)


def _made_as(column: DecodedColumn) -> Callable[[list[Any]], pa.Array]:
    """What makes an array of the values that were read for this column."""
    to, read = arrow_type(column.data_type), column.form
    leaf = to.value_type if pa.types.is_list(to) else to
    if read is Form.JSON:
        return lambda values: pa.array([_raw(value) for value in values], to)
    if read is Form.DIGITS:
        return lambda values: pa.array([_digits(value) for value in values], to)
    if pa.types.is_temporal(leaf):
        texts = pa.list_(pa.string()) if leaf is not to else pa.string()
        return lambda values: pa.array(values, texts).cast(to)
    if pa.types.is_float32(leaf) or pa.types.is_string(leaf) or pa.types.is_map(leaf):
        return lambda values: _checked(pa.array(values, to))
    return lambda values: pa.array(values, to)


def _raw(value: Any) -> str | None:
    # SQL has a null of its own.
    return None if value is None or (text := bytes(value)) == b"null" else text.decode()


def _digits(value: Any) -> Any:
    if isinstance(value, list):
        return [_digits(one) for one in value]
    return None if value is None else str(value)


def _checked(array: pa.Array) -> pa.Array:
    """:raises _UnfitError: for what Arrow takes, and Postgres does not: a NUL in a text, a real that is too large."""
    for leaf in _leaves(array):
        is_bad = pc.match_substring(leaf, "\0") if pa.types.is_string(leaf.type) else pc.is_inf(leaf)
        if pc.any(is_bad, min_count=0).as_py():
            raise _UnfitError
    return array


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    if pa.types.is_map(array.type):
        yield from (array.keys, array.items)
    else:
        yield array.flatten() if pa.types.is_list(array.type) else array


_NEEDED: dict[type[t.DataType], str] = {
    t.TimestampType: "a time with its offset, as in 2026-01-31T12:00:00.123456Z",
    t.TimestampNTZType: "a time without an offset, as in 2026-01-31T12:00:00.123456",
    t.DateType: "a date, as in 2026-01-31",
    t.FloatType: "a number that a real can hold",
    t.StringType: "a text in UTF-8 without NUL",
}


def _needed(column: DecodedColumn) -> str:
    leaf: t.DataType = column.data_type
    if isinstance(leaf, t.ArrayType):
        leaf = leaf.elementType
    if isinstance(leaf, t.DecimalType):
        return f"not a number of {column.decoded_for}."
    return f"not {_NEEDED.get(type(leaf), f'a value of {column.decoded_for}')}."


def _said(error: Exception) -> str:
    """What msgspec says, which names types, fields and places and no value."""
    return str(error).rstrip(".")


@dataclass(frozen=True)
class _Fields:
    """The fields of an object: a column's value, or another object."""

    inner: dict[str, DecodedColumn | _Fields]
    required: frozenset[str]

    @classmethod
    def of(cls, columns: Iterable[DecodedColumn], required: Iterable[bool]) -> _Fields:
        """The objects to which the columns' paths lead."""
        inner: dict[str, Any] = {}
        needed = set()
        for column, is_needed in zip(columns, required, strict=True):
            at = inner
            for name in column.path[:-1]:
                at = at.setdefault(name, {})
            at[column.path[-1]] = column
            if is_needed:
                needed.add(column.name)
        return cls._made(inner, frozenset(needed))

    @classmethod
    def _made(cls, inner: dict[str, Any], needed: frozenset[str]) -> _Fields:
        return cls(
            {name: cls._made(one, needed) if isinstance(one, dict) else one for name, one in inner.items()}, needed
        )

    @property
    def is_needed(self) -> bool:
        """Whether a column within it needs a value."""
        return any(
            one.is_needed if isinstance(one, _Fields) else one.name in self.required for one in self.inner.values()
        )

    @property
    def count(self) -> int:
        """How many names a record has that lacks none."""
        return sum(1 + (one.count if isinstance(one, _Fields) else 0) for one in self.inner.values())

    def struct(self, name: str, *, forbids: bool, whole: bool = False) -> type[msgspec.Struct]:
        """The class of such an object; ``whole`` if none of the fields may be missing."""
        fields: list[Any] = []
        for number, one in enumerate(self.inner.values()):
            at = f"f{number}"
            if isinstance(one, _Fields):
                kind: Any = one.struct(f"{name}{number}", forbids=forbids, whole=whole)
                fields.append((at, kind) if whole or one.is_needed else (at, kind | None, None))
                continue
            kind = read_as(one.data_type, one.form)
            if one.name in self.required:
                fields.append((at, kind))
            elif whole:
                fields.append((at, or_null(kind)))
            else:
                fields.append(
                    (at, or_null(kind) | msgspec.UnsetType if kind is not msgspec.Raw else kind, msgspec.UNSET)
                )
        names = {f"f{number}": inner for number, inner in enumerate(self.inner)}
        return msgspec.defstruct(name, fields, rename=names, forbid_unknown_fields=forbids, kw_only=True, gc=False)

    def getter(self, path: Sequence[str]) -> Callable[[Any], Any]:
        """What gets the value at this path of such an object; None if an object on the way is missing."""
        numbers = {name: number for number, name in enumerate(self.inner)}
        first, inner = attrgetter(f"f{numbers[path[0]]}"), self.inner[path[0]]
        if not isinstance(inner, _Fields):
            return first
        rest = inner.getter(path[1:])

        def get(row: Any) -> Any:
            found = first(row)
            return None if found is None else rest(found)

        return get

    def unknown(self, found: dict[str, msgspec.Raw], at: str = "") -> tuple[str, str] | None:
        """The first field of an object that no column takes, with a type that would fit; None if there is none."""
        for name, raw in found.items():
            one = self.inner.get(name)
            if one is None:
                return f"{at}{name}", type_that_fits(json.loads(bytes(raw)))
            if isinstance(one, _Fields) and bytes(raw)[:1] == b"{":
                inner = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
                if deeper := one.unknown(inner, f"{at}{name}."):
                    return deeper
        return None

    def read_one(self, found: dict[str, msgspec.Raw], column: DecodedColumn, *, required: bool) -> None:
        """:raises msgspec.MsgspecError: if the field of this column is not one that it takes."""
        raw: msgspec.Raw | None = None
        for depth, name in enumerate(column.path):
            raw = found.get(name)
            if raw is None:
                break
            if depth < len(column.path) - 1:
                found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw] | None) or {}
        if raw is None:
            if required:
                raise msgspec.ValidationError("it is missing")
            return
        kind = read_as(column.data_type, column.form)
        msgspec.json.decode(raw, type=kind if required else or_null(kind))


_FITS = ((bool, "boolean"), (int, "bigint"), (float, "numeric"), (str, "text"), ((dict, list), "jsonb"))


def type_that_fits(value: Any) -> str:
    """A type of Postgres that holds such values."""
    return next((fits for kind, fits in _FITS if isinstance(value, kind)), "text")
