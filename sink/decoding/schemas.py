"""
What schemas of Avro, Protobuf and Kafka Connect have in common: as what fields are read, and their values as JSON.

Pure: runs in tasks, and on the driver. Invariant: the JSON has every digit. What JSON has no form for (not-a-number,
infinity) is refused. A reason repeats no value.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from base64 import b64decode
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec
from pyspark.sql import types as t

from ..encoding.encoded_types import encoded_column
from .fields import Form


class UnreadableError(ValueError):
    """A value does not fit its schema, or has no form in JSON: why, without the value."""


def why_unreadable(error: Exception) -> str:
    """What to say of any error that reading a value ends in; the texts of others may repeat the value."""
    if isinstance(error, UnreadableError):
        return str(error)
    return "it ends too early" if isinstance(error, EOFError) else type(error).__name__


class Kind(NamedTuple):
    """As what a field would be read; a number of more digits than Spark's decimals have by ``DIGITS``."""

    data_type: t.DataType
    form: Form = Form.VALUE


JSON = Kind(t.StringType(), Form.JSON)
NUMBER = Kind(t.StringType(), Form.DIGITS)
TEXT = Kind(t.StringType())


DECODED_FOR = {Form.JSON: "jsonb", Form.DIGITS: "numeric"}
"""The type of the columns of Postgres for which values are read so."""


def kind_of_column(kinds: Sequence[Kind]) -> Kind:
    """As what a new column gets a field that may be of each of these kinds; no new column is an array of bytea."""
    return kinds[0] if len(kinds) == 1 and kinds[0] not in _NOT_NEW else JSON


_NOT_NEW = (Kind(t.ArrayType(t.BinaryType())), Kind(t.ArrayType(t.StringType()), Form.DIGITS))


def type_of(kinds: Sequence[Kind]) -> str:
    """The type of Postgres of such a column."""
    kind = kind_of_column(kinds)
    return DECODED_FOR.get(kind.form) or encoded_column("", kind.data_type).ddl_type


class Schema(ABC):
    """A schema of Avro, JSON Schema or Kafka Connect, or a message of Protobuf."""

    _root: Any

    def message(self, _: Sequence[int]) -> Schema:
        """Itself: only a schema of Protobuf has several messages."""
        return self

    @abstractmethod
    def value(self, body: bytes) -> Any:
        """What a record is; :raises Exception: any, if it is none."""

    def kinds(self, path: Sequence[str]) -> list[Kind]:
        """As what the field at this path would be read: several if it is a union; none if there is no such field."""
        return [kind for kind, _ in self._at(self._root, path)]

    def kinds_within(self, path: Sequence[str]) -> list[Kind]:
        """As what the values of the object at this path would be read; none if its schema says nothing of them."""
        # In a map any name leads to its values.
        return [kind for name in (*self.fields(path), "") for kind in self.kinds((*path, name))]

    def fields(self, path: Sequence[str] = ()) -> list[str]:
        """The names of the fields at this path."""
        return [name for _, inner in self._at(self._root, path) for name in inner]

    @abstractmethod
    def _branches(self, schema: Any) -> Iterable[tuple[Kind, Mapping[str, Any]]]:
        """As what such a part of the schema is read, and the parts within it; one for each branch of a union."""

    def _at(self, schema: Any, path: Sequence[str]) -> Iterator[tuple[Kind, Mapping[str, Any]]]:
        for kind, inner in self._branches(schema):
            if not path:
                yield kind, inner
            elif path[0] in inner or isinstance(inner, defaultdict):
                yield from self._at(inner[path[0]], path[1:])


def any_name(values: Any) -> Mapping[str, Any]:
    """What a map has within it: the same under each name."""
    return defaultdict(lambda: values)


def array_of(item: Kind) -> Kind:
    """As what a list is read; an array of arrays, or of JSON, is JSON."""
    is_plain = item.form is not Form.JSON and not isinstance(item.data_type, t.ArrayType)
    return Kind(t.ArrayType(item.data_type), item.form) if is_plain else JSON


def as_json(value: Any) -> bytes:
    """
    The JSON of a value: bytes in base64, times in ISO 8601.

    :raises UnreadableError: if a float in it is not a number, or infinite.
    """
    text = _TO_JSON(value)
    if b"null" in text and _has_no_number(value):
        raise UnreadableError("it has a float that is not a number or infinite")
    return text


_TO_JSON = msgspec.json.Encoder(decimal_format="number").encode


def _has_no_number(value: Any) -> bool:
    if isinstance(value, float):
        return not math.isfinite(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_no_number, inner))


# 24,000 digits; Postgres has room for 131,072 before the point, but with these it takes minutes.
_MOST_BYTES = 10_000


def decimal_of(unscaled: bytes, scale: int) -> Decimal:
    """
    The number of Avro's and Connect's decimals: a whole number, of which ``scale`` digits are after the point.

    :raises UnreadableError: if it has more bytes than a number has.
    """
    if len(unscaled) > _MOST_BYTES:
        raise UnreadableError("a number has too many digits")
    sign, digits, _ = Decimal(int.from_bytes(unscaled, "big", signed=True)).as_tuple()
    return Decimal((sign, digits, -scale))


def variable_decimal(value: Mapping[str, Any]) -> Decimal:
    """The number of ``io.debezium.data.VariableScaleDecimal``, whose bytes may be in base64."""
    unscaled = value["value"]
    return decimal_of(unscaled if isinstance(unscaled, bytes) else b64decode(unscaled, validate=True), value["scale"])


def micros_of(nanos: int) -> int:
    """:raises UnreadableError: for nanoseconds that are no whole microseconds, which Postgres does not keep."""
    if nanos % 1000:
        raise UnreadableError("it has nanoseconds")
    return nanos // 1000


def json_of(text: str) -> Any:
    """
    What ``io.debezium.data.Json`` has; a text that does not even begin as JSON is Debezium's placeholder.

    :raises UnreadableError: for JSON that cannot be read, and for its null, which would be taken for no value.
    """
    try:
        found = msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.MsgspecError:
        if text[:1] == "_":
            return text
        raise UnreadableError("its JSON cannot be read") from None
    if bytes(found) == b"null":
        raise UnreadableError("it has a JSON null, which could not be told from no value")
    return found
