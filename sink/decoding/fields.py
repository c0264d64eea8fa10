"""
The columns that are decoded, and the fields of a record that they get: as what each is read, and where its value is.

Pure: made where a batch is planned, used where records are decoded. Invariants: what a field is read as does not depend
on the record. A field belongs to one column, and no column's field lies within another one's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto
from operator import attrgetter
from typing import Annotated, Any, cast

import msgspec
import pyarrow as pa
from pyspark.sql import types as t

from pgonce.offsets_store.postgres.text import LONGEST_NAME, is_storable

from ..encoding.arrow_forms import arrow_form
from ..encoding.encoded_types import DECODED_FOR


class Form(Enum):
    """How a field's value is read."""

    VALUE = auto()
    """As a value of the column's type in Spark."""
    DIGITS = auto()
    """As a number with all its digits, which travels as text."""
    JSON = auto()
    """As the JSON that stands there, which travels as text."""


@dataclass(frozen=True)
class DecodedColumn:
    """
    A column of the table, and the field that it gets.

    :param path: the names that lead to the field, from the outermost object.
    :param data_type: as what the value travels; its ``form`` says how it is read.
    :param required: whether a record must have a value for it.
    :param is_key: whether it is among the keys, which the record's key may have.
    :param decoded_for: the column's type in Postgres; empty if the table has no such column.
    """

    name: str
    path: tuple[str, ...]
    data_type: t.DataType
    form: Form = Form.VALUE
    required: bool = False
    is_key: bool = False
    decoded_for: str = ""

    @property
    def is_nested(self) -> bool:
        """Whether its values are arrays or maps."""
        return isinstance(self.data_type, (t.ArrayType, t.MapType))

    @property
    def field(self) -> t.StructField:
        """The column of the rows that are decoded."""
        metadata = {DECODED_FOR: self.decoded_for} if self.decoded_for else {}
        return t.StructField(self.name, self.data_type, metadata=metadata)


@dataclass(frozen=True)
class KafkaColumn:
    """A column that gets something that Kafka knows of a record: ``what``, which may be ``headers.<name>``."""

    name: str
    what: str
    data_type: t.DataType


def arrow_type(data_type: t.DataType) -> pa.DataType:
    """The type of Arrow in which values travel."""
    if isinstance(data_type, t.MapType):
        return pa.map_(pa.string(), pa.string())
    return arrow_form(data_type, pa.string())


class UnknownFieldError(Exception):
    """A record has a field that no column takes: its path, and a type of Postgres that would fit its value."""

    def __init__(self, path: tuple[str, ...], fits: str) -> None:
        super().__init__(path, fits)
        self.path, self.fits = path, fits


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


def or_null(kind: Any) -> Any:
    """The same type, which also takes null; raw JSON does so by itself."""
    return kind if kind is msgspec.Raw else kind | None


@dataclass(frozen=True)
class Fields:
    """
    The fields of an object: a column's value, or another object.

    :param refuses: the names of other fields with which a record is refused; every other name if it is None.
    """

    inner: dict[str, DecodedColumn | Fields]
    refuses: frozenset[str] | None = None

    @classmethod
    def of(cls, columns: Iterable[DecodedColumn], refuses: frozenset[str] | None = None) -> Fields:
        """The objects to which the columns' paths lead; names that are refused are those of the outermost one."""
        found = cls({}, refuses)
        within = None if refuses is None else frozenset[str]()
        for column in columns:
            at = found
            for name in column.path[:-1]:
                at = cast("Fields", at.inner.setdefault(name, cls({}, within)))
            at.inner[column.path[-1]] = column
        return found

    def lacks(self, name: str) -> bool:
        """Whether a record with a field of this name is refused."""
        return name not in self.inner and (self.refuses is None or name in self.refuses)

    @property
    def required(self) -> bool:
        """Whether a column within it needs a value."""
        return any(one.required for one in self.inner.values())

    @property
    def is_flat(self) -> bool:
        """Whether no column's field lies within another object."""
        return not any(isinstance(one, Fields) for one in self.inner.values())

    @property
    def count(self) -> int:
        """How many names a record has that lacks none."""
        return sum(1 + (one.count if isinstance(one, Fields) else 0) for one in self.inner.values())

    def struct(self, name: str, *, whole: bool = False) -> type[msgspec.Struct]:
        """The class of such an object; ``whole`` if none of the fields may be missing."""
        forbids = self.refuses is None
        fields: list[Any] = []
        for number, one in enumerate(self.inner.values()):
            at = f"f{number}"
            if isinstance(one, Fields):
                kind: Any = one.struct(f"{name}{number}", whole=whole)
                fields.append((at, kind) if whole or one.required else (at, kind | None, None))
                continue
            kind = read_as(one.data_type, one.form)
            if one.required:
                fields.append((at, kind))
            elif whole:
                fields.append((at, or_null(kind)))
            else:
                fields.append(
                    (at, or_null(kind) | msgspec.UnsetType if kind is not msgspec.Raw else kind, msgspec.UNSET)
                )
        refused = [other for other in self.refuses or () if other not in self.inner]
        # No value is of this type, so a record that has such a field does not fit.
        fields += [(f"f{len(self.inner) + n}", msgspec.UnsetType, msgspec.UNSET) for n in range(len(refused))]
        names = {f"f{number}": inner for number, inner in enumerate([*self.inner, *refused])}
        return msgspec.defstruct(name, fields, rename=names, forbid_unknown_fields=forbids, kw_only=True, gc=False)

    def getter(self, path: Sequence[str]) -> Callable[[Any], Any]:
        """What gets the value at this path of such an object; None if an object on the way is missing."""
        numbers = {name: number for number, name in enumerate(self.inner)}
        first, inner = attrgetter(f"f{numbers[path[0]]}"), self.inner[path[0]]
        if not isinstance(inner, Fields):
            return first
        rest = inner.getter(path[1:])

        def get(row: Any) -> Any:
            found = first(row)
            return None if found is None else rest(found)

        return get

    def unknown(self, found: dict[str, msgspec.Raw], at: tuple[str, ...] = ()) -> tuple[tuple[str, ...], str] | None:
        """The first field of an object that is refused, with a type that would fit; None if there is none."""
        for name, raw in found.items():
            one = self.inner.get(name)
            if self.lacks(name):
                return (*at, name), type_that_fits(bytes(raw))
            if isinstance(one, Fields) and bytes(raw)[:1] == b"{":
                inner = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
                if deeper := one.unknown(inner, (*at, name)):
                    return deeper
        return None

    def read_one(self, found: dict[str, msgspec.Raw], column: DecodedColumn) -> None:
        """:raises msgspec.MsgspecError: if the field of this column is not one that it takes."""
        raw: msgspec.Raw | None = None
        for depth, name in enumerate(column.path):
            raw = found.get(name)
            if raw is None:
                break
            if depth < len(column.path) - 1:
                found = msgspec.json.decode(raw, type=dict[str, msgspec.Raw] | None) or {}
        if raw is None:
            if column.required:
                raise msgspec.ValidationError("it is missing")
            return
        kind = read_as(column.data_type, column.form)
        msgspec.json.decode(raw, type=kind if column.required else or_null(kind))


def may_be_named(name: str) -> bool:
    """Whether a column can have exactly this name."""
    return 0 < len(name.encode()) <= LONGEST_NAME and is_storable(name)


def type_that_fits(raw: bytes) -> str:
    """A type of Postgres that holds such JSON values."""
    if raw[:1] in b'"n':
        return "text"
    if raw[:1] in b"{[":
        return "jsonb"
    if raw[:1] in b"tf":
        return "boolean"
    return "numeric" if set(raw) & set(b".eE") or len(raw) > _BIGINT_DIGITS else "bigint"


_BIGINT_DIGITS = 18
