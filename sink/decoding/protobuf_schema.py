"""
Read records of Protobuf by the text of their schema, and say of which types their fields are.

Pure, but for a directory in which `protoc` compiles: runs in tasks, and on the driver. Invariant: a field that is not
set is null where Protobuf can tell, and else its default; a record with fields that its schema lacks is refused.

https://protobuf.dev/programming-guides/proto3/
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from importlib.resources import files
from operator import attrgetter
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, wrappers_pb2
from google.protobuf.json_format import MessageToDict
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.sql import types as t

from .schemas import JSON, NUMBER, TEXT, Kind, Schema, UnreadableError, any_name, array_of, micros_of

_Read = Callable[[Any], Any]
_KINDS: dict[str, Kind] = {
    "TYPE_BOOL": Kind(t.BooleanType()),
    "TYPE_FLOAT": Kind(t.FloatType()),
    "TYPE_DOUBLE": Kind(t.DoubleType()),
    "TYPE_STRING": TEXT,
    "TYPE_ENUM": TEXT,
    "TYPE_BYTES": Kind(t.BinaryType()),
    **dict.fromkeys(("TYPE_INT32", "TYPE_SINT32", "TYPE_SFIXED32"), Kind(t.IntegerType())),
    **dict.fromkeys(("TYPE_INT64", "TYPE_SINT64", "TYPE_SFIXED64", "TYPE_UINT32", "TYPE_FIXED32"), Kind(t.LongType())),
    **dict.fromkeys(("TYPE_UINT64", "TYPE_FIXED64"), NUMBER),
}
_TYPES = {number: name for name, number in descriptor_pb2.FieldDescriptorProto.Type.items()}
_GOOGLES = "google.protobuf."
_WRAPPERS = {found.full_name for found in wrappers_pb2.DESCRIPTOR.message_types_by_name.values()}
_AS_DICT = {f"{_GOOGLES}{name}" for name in ("Struct", "Value", "ListValue")}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_SCHEMA = "pgonce_schema.proto"


class ProtobufSchema:
    """
    A file of messages, and those that it imports, by their names.

    :raises ValueError: if they cannot be compiled.
    """

    form = "protobuf"

    def __init__(self, text: str, references: Sequence[tuple[str, str]] = ()) -> None:
        self._pool = descriptor_pool.DescriptorPool()
        for file in _compiled({**dict(references), _SCHEMA: text}).file:
            self._pool.Add(file)

    def message(self, indexes: Sequence[int]) -> ProtobufMessage:
        """
        The message that these indexes lead to, from the file's own to those within it.

        :raises LookupError: if there is none.
        """
        if min(indexes) < 0:
            raise LookupError(indexes)
        messages = self._pool.FindFileByName(_SCHEMA).message_types_by_name.values()
        found = list(messages)[indexes[0]]
        for index in indexes[1:]:
            found = found.nested_types[index]
        return ProtobufMessage(found)


class ProtobufMessage(Schema):
    """One message of a schema."""

    def __init__(self, descriptor: Any) -> None:
        self._root = descriptor
        self._read = message_factory.GetMessageClass(descriptor).FromString

    def value(self, body: bytes) -> Any:
        """The message."""
        return _value(_whole(self._read(body)))

    def _branches(self, of: Any) -> list[tuple[Kind, Mapping[str, Any]]]:
        field, message = (None, of) if of is self._root else (of, of.message_type)
        if message is not None and message.GetOptions().map_entry:
            return [(JSON, any_name(message.fields_by_name["value"]))]
        is_object = message is not None and (field is None or not field.is_repeated)
        return [(_kind(field) if field else JSON, message.fields_by_name if is_object else {})]


def _compiled(texts: dict[str, str]) -> Any:
    from grpc_tools import protoc

    if any(PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts for name in texts):
        raise ValueError("a schema has a name that leads out of its directory")
    with TemporaryDirectory(prefix="pgonce-") as made:
        for name, text in texts.items():
            file = Path(made, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        out = Path(made, "pgonce.descriptors")
        include = files("grpc_tools") / "_proto"
        given = ["protoc", f"-I{made}", f"-I{include}", "--include_imports", f"--descriptor_set_out={out}", _SCHEMA]
        if protoc.main(given) != 0:
            raise ValueError("protoc does not take it")
        return descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())


def _kind(field: Any) -> Kind:
    of = field.message_type
    if of is not None and of.GetOptions().map_entry:
        return JSON
    if of is None:
        kind = _KINDS.get(_TYPES[field.type], JSON)
    elif of.full_name == f"{_GOOGLES}Timestamp":
        kind = Kind(t.TimestampType())
    elif of.full_name == f"{_GOOGLES}Duration":
        kind = TEXT
    else:
        kind = _kind(of.fields_by_name["value"]) if of.full_name in _WRAPPERS else JSON
    return array_of(kind) if field.is_repeated else kind


def _value(message: Any) -> Any:
    return {name: read(message) for name, read in _readers(message.DESCRIPTOR)}


@lru_cache(maxsize=1024)
def _readers(descriptor: Any) -> list[tuple[str, _Read]]:
    """The fields of a message, and what reads each of them."""
    if descriptor.is_extendable:
        raise UnreadableError(f"{descriptor.name} has extensions, which are not read")
    return [(field.name, _reader(field)) for field in descriptor.fields]


def _reader(field: Any) -> _Read:
    name, of, get = field.name, field.message_type, attrgetter(field.name)
    if of is not None and of.GetOptions().map_entry:
        one = _reader_of_values(of.fields_by_name["value"])
        return lambda message: {_key(key): one(value) for key, value in get(message).items()}
    one = _reader_of_values(field)
    if field.is_repeated:
        return lambda message: [one(value) for value in get(message)]
    if field.has_presence:
        return lambda message: one(get(message)) if message.HasField(name) else None
    return get if one is _as_it_is else lambda message: one(get(message))


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _reader_of_values(field: Any) -> _Read:
    if field.enum_type is not None:
        names = {number: found.name for number, found in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    of = field.message_type
    if of is None:
        return _as_it_is
    read: _Read = _value
    if of.full_name == f"{_GOOGLES}Timestamp":
        read = _instant
    elif of.full_name == f"{_GOOGLES}Duration":
        read = _duration
    elif of.full_name in _AS_DICT:
        read = MessageToDict
    elif of.full_name in _WRAPPERS:
        read = attrgetter("value")
    return lambda value: read(_whole(value))


def _whole(message: Any) -> Any:
    if len(UnknownFieldSet(message)):
        raise UnreadableError("it has a field that its schema lacks")
    return message


def _as_it_is(value: Any) -> Any:
    return value


def _instant(value: Any) -> dt.datetime:
    return _EPOCH + dt.timedelta(seconds=value.seconds, microseconds=micros_of(value.nanos))


def _duration(value: Any) -> str:
    return f"{value.seconds * 1_000_000 + micros_of(value.nanos)} microseconds"
