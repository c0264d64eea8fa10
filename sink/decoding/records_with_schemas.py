"""
Read records that have a schema: by its number in a registry, or, for Kafka Connect's JSON, in the record itself.

Runs in tasks, and on the driver for foreachBatch, before records are decoded for columns. Invariant: a record is read
by the schema that it names, whole, or is refused. Where a column would take the JSON of a field, but not the field as
its schema has it (bytes for a text, a double for a numeric, what is JSON for any but JSON and hstore), the record is
refused too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from io import BytesIO
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from pyspark.sql import types as t

from pgonce.offsets_store.errors import PgonceError

from ..options.definitions import DecodeFormat
from .connect_schema import ConnectSchema
from .fields import DecodedColumn, Fields, Form, UnknownFieldError
from .json_records import DOUBLED, MALFORMED, has_double
from .schema_registry import SchemaRegistry, registry_at
from .schemas import DECODED_FOR, Kind, Schema, as_json, type_of, why_unreadable
from .values import Refusal

_HEADERS = {"value": "__value_schema_id", "key": "__key_schema_id"}
# A record of nothing else would take minutes.
_LONGEST_FRAME = 200


class _Split(NamedTuple):
    """A record's schema, or its number; what it describes; and for Protobuf, the indexes that lead to its message."""

    schema: int | UUID | msgspec.Raw
    body: bytes | msgspec.Raw
    message: tuple[int, ...] = ()


class _WithSchema(msgspec.Struct):
    """A record of Kafka Connect's JSON converter."""

    schema: msgspec.Raw
    payload: msgspec.Raw


class RecordsWithSchemas:
    """
    Reads the records of one batch for these columns.

    :param url: of the registry; empty if each record has its schema.
    :param form: what the records are.
    :param refuses: the names of fields that no column takes, and that are not passed over; None if no field is.
    :param at: where in a record the fields of the columns are, as in Debezium's ``after``.
    """

    def __init__(
        self,
        url: str,
        form: DecodeFormat,
        columns: Sequence[DecodedColumn],
        *,
        refuses: frozenset[str] | None,
        at: tuple[str, ...] = (),
    ) -> None:
        self._registry = registry_at(url) if url else None
        self._form, self._at = form, at
        self._columns = columns
        self._fields = Fields.of(columns, refuses)
        # Not kept for the next batch: a schema that the registry lacks may be there then.
        self._schemas: dict[Any, Schema | Refusal] = {}
        self._last_frame: _Split | None = None

    def read(self, records: Sequence[bytes | None], headers: Iterable[Any], part: str = "value") -> list[Any]:
        """
        What each record is: a value of Python, or why it is refused; None if there is no record.

        :param part: of what: ``value`` or ``key``.
        :raises UnknownFieldError: if a schema has a field that no column takes, and that is not to be passed over.
        :raises EncodingError: REGISTRY_UNREACHABLE.
        """
        return [
            None if record is None else self._one(record, named, part)
            for record, named in zip(records, headers, strict=True)
        ]

    def _one(self, record: bytes, headers: Any, part: str) -> Any:
        of = self._registry
        split = self._framed(of, record, headers, part) if of else _with_schema(record, part)
        if isinstance(split, Refusal):
            return split
        if self._form == "json" and self._registry:
            return msgspec.Raw(bytes(split.body))
        key = (split.schema if isinstance(split.schema, (int, UUID)) else bytes(split.schema), split.message)
        schema = self._schemas.get(key)
        if schema is None:
            schema = self._schemas[key] = self._fit(*key)
        if isinstance(schema, Refusal):
            return schema
        try:
            return schema.value(bytes(split.body))
        except Exception as error:  # noqa: BLE001 (there is no list of what bytes can lead to in three libraries)
            return Refusal("", f"Its {part} does not fit its schema: {why_unreadable(error)}.")

    def _framed(self, registry: SchemaRegistry, record: bytes, headers: Any, part: str) -> _Split | Refusal:
        """A record behind the number of its schema, which may be in a header."""
        header = last_header(headers, _HEADERS[part])
        begin, last = header or record, self._last_frame
        # The same bytes mean the same, and most records begin as the one before them.
        if last is None or not begin.startswith(last.body):
            found, stream = registry.schema_id(self._form.upper()), BytesIO(begin[:_LONGEST_FRAME])
            try:
                found.from_bytes(stream)
            except Exception:  # noqa: BLE001 (there is no list of what bytes can lead to)
                what = "the numbers of a schema and a message" if self._form == "protobuf" else "the number of a schema"
                return Refusal("", f"Its {part} does not begin with {what}.")
            message = tuple(found.message_indexes or ())
            last = self._last_frame = _Split(found.guid or found.id or 0, begin[: stream.tell()], message)
        return _Split(last.schema, record if header else record[len(last.body) :], last.message)

    def _fit(self, key: int | UUID | bytes, message: tuple[int, ...]) -> Schema | Refusal:
        """The schema, if columns take its fields."""
        try:
            found = ConnectSchema(key) if isinstance(key, bytes) else self._registered(key, message)
            return found if isinstance(found, Refusal) else self._taken(found)
        except (UnknownFieldError, PgonceError):
            raise
        except Exception as error:  # noqa: BLE001 (a producer may write any schema into its record)
            return Refusal("", f"Its schema cannot be read: {why_unreadable(error)}.")

    def _registered(self, key: int | UUID, message: tuple[int, ...]) -> Schema | Refusal:
        found = self._registry.schema(key) if self._registry else ""
        if isinstance(found, str):
            return Refusal("", found)
        if found.form != self._form:
            return Refusal("", f"Its schema {key} is one of {found.form}.")
        try:
            return found.message(message)
        except LookupError:
            return Refusal("", f"Its schema {key} has no message {message}.")

    def _taken(self, found: Schema) -> Schema | Refusal:
        """The same schema, if columns take its fields."""
        if unknown := _unknown(found, self._fields, self._at):
            raise UnknownFieldError(unknown[len(self._at) :], type_of(found.kinds(unknown)))
        for column in self._columns:
            for kind in self._kinds(found, column):
                if _is_unsuited(column.data_type, kind):
                    said = DECODED_FOR.get(kind.form, kind.data_type.simpleString())
                    what = f"Field {'.'.join(column.path)!r} is {said} in its schema"
                    return Refusal(column.name, f"{what}, and column {column.name} is {column.decoded_for}.")
        return found

    def _kinds(self, found: Schema, column: DecodedColumn) -> list[Kind]:
        """As what the column's field may be read, and for an hstore what is in it; none for JSON, which takes any."""
        path = (*self._at, *column.path)
        if column.form is Form.JSON:
            return []
        if isinstance(column.data_type, t.MapType):
            return found.kinds_within(path)
        # A record's key may be a single value.
        return found.kinds(path) or [kind for kind in found.kinds(()) if kind.form is not Form.JSON]


def json_of_each(values: Sequence[Any]) -> tuple[list[bytes | None], dict[int, Refusal]]:
    """The JSON of what was read, and what is refused, which is None among it."""
    made: list[bytes | None] = []
    refused: dict[int, Refusal] = {}
    for row, value in enumerate(values):
        found = None
        if isinstance(value, Refusal):
            refused[row] = value
        elif value is not None:
            try:
                found = as_json(value)
            except Exception as error:  # noqa: BLE001 (as above)
                refused[row] = Refusal("", f"It cannot be read: {why_unreadable(error)}.")
        made.append(found)
    return made, refused


def last_header(headers: Any, name: str) -> bytes | None:
    """The value of a record's header; of several with one name, that of the last, as Kafka's own lastHeader."""
    return next((one["value"] for one in reversed(headers or ()) if one["key"] == name), None)


def _with_schema(record: bytes, part: str) -> _Split | Refusal:
    """A record of Kafka Connect's JSON converter."""
    try:
        found = _READ_WITH_SCHEMA(record)
    except MALFORMED as error:
        what = f"Its {part} is not JSON with a schema: {error}."
        return Refusal("", f"{what} The connector needs {part}.converter.schemas.enable=true.")
    plain = b'{"schema":%s,"payload":%s}' % (bytes(found.schema), bytes(found.payload))
    # Schemas are long, and most records have nothing beside the two.
    if has_double(bytes(found.payload) if plain == record else record):
        return Refusal("", DOUBLED)
    return _Split(found.schema, found.payload)


_READ_WITH_SCHEMA = msgspec.json.Decoder(_WithSchema).decode


def _unknown(schema: Schema, fields: Fields, at: tuple[str, ...]) -> tuple[str, ...] | None:
    """The path of the first field that is refused."""
    for name in schema.fields(at):
        inner = fields.inner.get(name)
        if fields.lacks(name):
            return (*at, name)
        if isinstance(inner, Fields) and (deeper := _unknown(schema, inner, (*at, name))):
            return deeper
    return None


def _is_unsuited(to: t.DataType, kind: Kind) -> bool:
    """Whether a field of this kind, as JSON, may become a value that it is not."""
    of = kind.data_type
    if kind.form is Form.JSON:
        return True
    if isinstance(to, t.ArrayType) and isinstance(of, t.ArrayType):
        to, of = to.elementType, of.elementType
    if isinstance(to, (t.FloatType, t.DoubleType)):
        whole = (t.ShortType, t.IntegerType) if isinstance(to, t.DoubleType) else (t.ShortType,)
        return not isinstance(of, (type(to), t.FloatType, *whole))
    if isinstance(of, (t.FloatType, t.DoubleType)):
        return True
    return isinstance(to, t.BinaryType) is not isinstance(of, t.BinaryType)
