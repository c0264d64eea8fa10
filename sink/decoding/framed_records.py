"""
Read records that have the number of their schema in front, or in a header, as the JSON that they are.

Runs in tasks, and on the driver for foreachBatch, before records are decoded for columns. Invariant: a record is read
by the schema that it names, whole, or is refused. Where a column would take the JSON of a field, but not the field as
its schema has it (bytes for a text, a double for a numeric), the record is refused too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any
from uuid import UUID

from pyspark.sql import types as t

from ..encoding.encoded_types import encoded_column
from ..options.definitions import DecodeFormat
from .avro_schema import JSON, UNREADABLE, AvroSchema, Kind
from .decoded_columns import DecodedColumn, Form
from .fields import Fields, UnknownFieldError
from .schema_registry import SchemaRegistry, registry_at
from .values import Refusal

_HEADERS = {"value": "__value_schema_id", "key": "__key_schema_id"}
_BY_NUMBER, _BY_GUID, _NUMBER_ENDS, _GUID_ENDS = 0, 1, 5, 17


class FramedRecords:
    """
    Reads records for these columns.

    :param form: what is behind the number; JSON is taken as it is.
    """

    def __init__(self, url: str, columns: Sequence[DecodedColumn], form: DecodeFormat, *, ignores_extra: bool) -> None:
        self._registry = registry_at(url)
        self._form = form
        self._columns = columns
        self._fields = None if ignores_extra else Fields.of(columns, [False] * len(columns))
        self._read: dict[int | UUID, AvroSchema | Refusal] = {}

    def as_json(
        self, records: Sequence[bytes | None], headers: Iterable[Any], part: str = "value"
    ) -> tuple[list[bytes | None], dict[int, Refusal]]:
        """
        The records as JSON, and those that are refused, which are None among these.

        :param part: of what: ``value`` or ``key``.
        :raises UnknownFieldError: if a schema has a field that no column takes, and that is not to be passed over.
        :raises EncodingError: REGISTRY_UNREACHABLE.
        """
        made: list[bytes | None] = []
        refused: dict[int, Refusal] = {}
        self._read = {number: found for number, found in self._read.items() if isinstance(found, AvroSchema)}
        for row, (record, named) in enumerate(zip(records, headers, strict=True)):
            found = None if record is None else self._one(record, named, part)
            made.append(found if isinstance(found, bytes) else None)
            if isinstance(found, Refusal):
                refused[row] = found
        return made, refused

    def _one(self, record: bytes, headers: Any, part: str) -> bytes | Refusal:
        header = next((one["value"] for one in headers or () if one["key"] == _HEADERS[part]), None)
        number, begins = _number(header or record)
        if number is None:
            return Refusal("", f"Its {part} does not begin with the number of a schema.")
        body = record if header else record[begins:]
        if self._form == "json":
            return body
        schema = self._read.get(number)
        if schema is None:
            schema = self._read[number] = self._fit(number)
        if isinstance(schema, Refusal):
            return schema
        try:
            return schema.as_json(body)
        except UNREADABLE as error:
            return Refusal("", f"It does not fit its schema {number}: {error or type(error).__name__}.")

    def _fit(self, number: int | UUID) -> AvroSchema | Refusal:
        """The schema of this number, if columns take its fields."""
        schema = self._registry.schema(number)
        if isinstance(schema, str):
            return Refusal("", schema)
        if self._fields is not None and (unknown := _unknown(schema, self._fields)):
            raise UnknownFieldError(unknown, type_of(schema.kinds(unknown)))
        for column in self._columns:
            # A record's key may be a single value.
            for kind in schema.kinds(column.path) or schema.kinds(()):
                if _is_unsuited(column, kind):
                    what = f"Field {'.'.join(column.path)!r} is {kind.data_type.simpleString()} in schema {number}"
                    return Refusal(column.name, f"{what}, and column {column.name} is {column.decoded_for}.")
        return schema


@lru_cache(maxsize=64)
def framed_records(
    url: str, columns: tuple[DecodedColumn, ...], form: DecodeFormat, ignores_extra: bool
) -> FramedRecords:
    """The same one each time, because it remembers what it has read."""
    return FramedRecords(url, columns, form, ignores_extra=ignores_extra)


def _number(begin: bytes) -> tuple[int | UUID | None, int]:
    """The number of the schema, and where it ends."""
    if len(begin) >= _NUMBER_ENDS and begin[0] == _BY_NUMBER:
        return int.from_bytes(begin[1:_NUMBER_ENDS], "big"), _NUMBER_ENDS
    if len(begin) >= _GUID_ENDS and begin[0] == _BY_GUID:
        return UUID(bytes=begin[1:_GUID_ENDS]), _GUID_ENDS
    return None, 0


def _unknown(schema: AvroSchema, fields: Fields, at: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    """The path of the first field that no column takes."""
    for name in schema.fields(at):
        inner = fields.inner.get(name)
        if inner is None:
            return (*at, name)
        if isinstance(inner, Fields) and (deeper := _unknown(schema, inner, (*at, name))):
            return deeper
    return None


def _is_unsuited(column: DecodedColumn, kind: Kind) -> bool:
    """Whether a field of this kind, as JSON, would become a value that it is not."""
    if column.form is Form.JSON or kind.form is Form.JSON:
        return False
    to, of = column.data_type, kind.data_type
    if isinstance(to, t.ArrayType) and isinstance(of, t.ArrayType):
        to, of = to.elementType, of.elementType
    if isinstance(to, (t.FloatType, t.DoubleType)):
        return not isinstance(of, (type(to), t.FloatType, *((t.IntegerType,) if isinstance(to, t.DoubleType) else ())))
    if isinstance(of, (t.FloatType, t.DoubleType)):
        return True
    return isinstance(to, t.BinaryType) is not isinstance(of, t.BinaryType)


def type_of(kinds: Sequence[Kind]) -> str:
    """The type of Postgres that holds a field that may be of each of these kinds."""
    kind = _only(kinds)
    return _DECODED_FOR.get(kind.form) or encoded_column("", kind.data_type).ddl_type


def _only(kinds: Sequence[Kind]) -> Kind:
    """As what a new column gets such a field; none that is decoded has an array of bytea."""
    is_plain = len(kinds) == 1 and kinds[0].data_type != t.ArrayType(t.BinaryType())
    return kinds[0] if is_plain else JSON


_DECODED_FOR = {Form.JSON: "jsonb", Form.DIGITS: "numeric"}


def columns_of_schemas(
    registry: SchemaRegistry, subjects: Iterable[str], paths: dict[str, str], keys: Sequence[str]
) -> Iterator[DecodedColumn]:
    """The columns that a table would have for all fields of these subjects, with the type of the newest version."""
    schemas = [schema for subject in subjects for schema in registry.versions(subject)]
    names = dict.fromkeys(name for schema in schemas for name in schema.fields())
    taken = {path.split(".")[0] for path in paths.values()}
    of = {name: (name,) for name in names if name not in taken} | {n: tuple(p.split(".")) for n, p in paths.items()}
    for name, path in of.items():
        # Of versions that differ, the newest counts: what it does not take is refused record by record.
        kinds = next((found for schema in reversed(schemas) if (found := schema.kinds(path))), [])
        kind = _only(kinds)
        decoded_for = _DECODED_FOR.get(kind.form, "")
        yield DecodedColumn(name, path, kind.data_type, kind.form, is_key=name in keys, decoded_for=decoded_for)
