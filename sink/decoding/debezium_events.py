"""
Take Debezium's events apart: the image of the row, what was done with it, and what an update says was there before.

Pure: runs in tasks, and on the driver for foreachBatch. Invariant: an event is one change of one row, or is refused: a
truncate, an event without its image, or a value that the source could not read and that nothing says how to keep.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import types as t

from .decoded_columns import DecodedColumn, Form
from .schemas import UNREADABLE, as_json
from .values import Refusal

AFTER = "after"
_WRITES, DELETES, _UPDATES = ("c", "r", "u"), "d", "u"
_PLACEHOLDER = b"__debezium_unavailable_value"
_PLACEHOLDERS = tuple(b'"%s"' % form for form in (_PLACEHOLDER, b64encode(_PLACEHOLDER)))


@dataclass
class Events:
    """
    What events say, each in its row: the image as JSON, the operation, and for :data:`BEFORE_COLUMN` the row before.

    All are None where there is no event, or where it is refused.
    """

    images: list[bytes | None] = field(default_factory=list)
    operations: list[str | None] = field(default_factory=list)
    told: list[str | None] = field(default_factory=list)
    refused: dict[int, Refusal] = field(default_factory=dict)


def events_of(
    values: Sequence[Any], keys: Sequence[Any], columns: Sequence[DecodedColumn], order: Sequence[str], keeps: bool
) -> Events:
    """
    Take events apart.

    :param values: the envelopes, among them refusals, and None where a record has no value.
    :param keys: the records' keys, in the same way.
    :param columns: the columns of the table that are its keys.
    :param order: a path into the envelope, whose field the image gets; empty if it gets none.
    :param keeps: whether values that the source could not read are known as such, and kept.
    """
    events = Events()
    for row, (envelope, key) in enumerate(zip(values, keys, strict=True)):
        found = envelope if envelope is None or isinstance(envelope, Refusal) else _one(envelope, key, columns, order)
        if isinstance(found, tuple) and not keeps and any(form in found[0] for form in _PLACEHOLDERS):
            found = Refusal("", "It has a value that the source could not read: set keepWhere to the placeholder.")
        if isinstance(found, Refusal):
            events.refused[row] = found
        image, operation, told = found if isinstance(found, tuple) else (None, None, None)
        events.images.append(image)
        events.operations.append(operation)
        events.told.append(told)
    return events


def _one(
    envelope: Any, key: Any, columns: Sequence[DecodedColumn], order: Sequence[str]
) -> tuple[bytes, str, str | None] | Refusal:
    operation = envelope.get("op") if isinstance(envelope, dict) else None
    if operation not in (*_WRITES, DELETES):
        said = f"Its operation is {operation[:20]!r}" if isinstance(operation, str) else "It has no operation"
        return Refusal("op", f"{said}, which is none of c, r, u and d.")
    before, after = envelope.get("before"), envelope.get(AFTER)
    image = before if operation == DELETES else after
    if not isinstance(image, dict):
        name = "before" if operation == DELETES else AFTER
        return Refusal(name, f"Its {name} is null, and its operation is {operation!r}.")
    if order and order[-1] in image:
        return Refusal(order[-1], f"It has a field {order[-1]}, and orderBy would put another value there.")
    try:
        if order:
            image = image | {order[-1]: _at(envelope, order)}
        told = _told(before, image, key, columns) if operation == _UPDATES else None
        return as_json(image), operation, told
    except UNREADABLE as error:
        return Refusal("", f"{str(error) or type(error).__name__}.".capitalize())


def _told(before: Any, after: Mapping[str, Any], key: Any, columns: Sequence[DecodedColumn]) -> str | None:
    """What the row before an update had in keys, and the record's key; None if no key was changed."""
    has_key = isinstance(key, dict)
    if before is None and not has_key:
        return None
    plain = [column for column in columns if column.form is Form.VALUE and not _is_nested(column.data_type)]
    row, now = ({column.name: _text(_at(of, column.path)) for column in plain} for of in (before, after))
    if row == now and len(plain) == len(columns):
        return None
    told = {"row": row if before is not None else None, "key": key if has_key else {}}
    return as_json(told).decode()


def _is_nested(data_type: t.DataType) -> bool:
    return isinstance(data_type, (t.ArrayType, t.MapType))


def _text(value: Any) -> Any:
    # As Postgres reads a bytea.
    return "\\x" + value.hex() if isinstance(value, bytes) else value


def _at(of: Any, path: Sequence[str]) -> Any:
    for name in path:
        of = of.get(name) if isinstance(of, dict) else None
    return of
