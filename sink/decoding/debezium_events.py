"""
Take Debezium's events apart: the image of the row, what was done with it, and what an update says was there before.

Pure: runs in tasks, and on the driver for foreachBatch. Invariant: an event is one change of one row, or is refused: a
truncate, an event without its image, or a value that the source could not read and that nothing says how to keep.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .fields import DecodedColumn, Form
from .schemas import as_json, why_unreadable
from .values import Refusal

AFTER, DELETES = "after", "d"
_WRITES, _UPDATES, _OF_SNAPSHOT = ("c", "r", "u"), "u", "r"
_PLACEHOLDER = b"__debezium_unavailable_value"
_PLACEHOLDERS = (b'"%s"' % _PLACEHOLDER, b'"%s"' % b64encode(_PLACEHOLDER), as_json(list(_PLACEHOLDER)))
"""Of texts, of bytes, and of arrays of whole numbers."""


class Event(NamedTuple):
    """
    What an event says; nothing where there is none, or where it is refused.

    :param image: the row after the change, or before a delete, as JSON.
    :param before: of an update, the keys of the row before it, as JSON.
    :param told: for :data:`BEFORE_COLUMN`, where an update may have changed a key.
    """

    image: bytes | None = None
    operation: str | None = None
    before: bytes | None = None
    told: str | None = None


def events_of(
    values: Sequence[Any], keys: Sequence[Any], columns: Sequence[DecodedColumn], order: Sequence[str], keeps: bool
) -> tuple[list[Event], dict[int, Refusal]]:
    """
    What each record says, and which are refused.

    :param values: the envelopes, among them refusals, and None where a record has no value.
    :param keys: the records' keys, in the same way.
    :param columns: the columns of the table that are its keys.
    :param order: a path into the envelope, whose field the image gets; empty if it gets none.
    :param keeps: whether values that the source could not read are known as such, and kept.
    """
    events: list[Event] = []
    refused: dict[int, Refusal] = {}
    for row, (envelope, key) in enumerate(zip(values, keys, strict=True)):
        found: Event | Refusal
        try:
            found = Event() if envelope is None else _one(envelope, key, columns, order)
        except Exception as error:  # noqa: BLE001 (a value may have any form, and what it has not is refused)
            found = Refusal("", f"It cannot be read: {why_unreadable(error)}.")
        if isinstance(found, Event) and not keeps and any(form in (found.image or b"") for form in _PLACEHOLDERS):
            found = Refusal("", "It has a value that the source could not read: set keepWhere to the placeholder.")
        if isinstance(found, Refusal):
            refused[row] = found
        events.append(found if isinstance(found, Event) else Event())
    return events, refused


def _one(envelope: Any, key: Any, columns: Sequence[DecodedColumn], order: Sequence[str]) -> Event | Refusal:
    if isinstance(envelope, Refusal):
        return envelope
    operation = envelope.get("op") if isinstance(envelope, dict) else None
    if operation not in (*_WRITES, DELETES):
        said = f"Its operation is {operation[:20]!r}" if isinstance(operation, str) else "It has no operation"
        return Refusal("op", f"{said}, which is none of c, r, u and d.")
    before, after = envelope.get("before"), envelope.get(AFTER)
    image = before if operation == DELETES else after
    if not isinstance(image, dict):
        name = "before" if operation == DELETES else AFTER
        return Refusal(name, f"Its {name} is null, and its operation is {operation!r}.")
    if order:
        place = _at(envelope, order)
        if place is None and operation != _OF_SNAPSHOT:
            return Refusal(order[-1], f"It has no {'.'.join(order)}, which orderBy names.")
        if order[-1] in image:
            return Refusal(order[-1], f"It has a field {order[-1]}, and orderBy would put another value there.")
        image = image | {order[-1]: place}
    if operation != _UPDATES:
        return Event(as_json(image), operation)
    if before is None and isinstance(key, Refusal):
        return key
    return Event(as_json(image), operation, *_told(before, image, key, columns))


def _told(
    before: Any, after: Mapping[str, Any], key: Any, columns: Sequence[DecodedColumn]
) -> tuple[bytes | None, str | None]:
    """The keys of the row before an update; and these with what the record's key has, unless no key was changed."""
    if before is None and key is None:
        return None, None
    plain = [column for column in columns if column.form is not Form.JSON and not column.is_nested]
    row, now = ({column.name: _at(of, column.path) for column in plain} for of in (before, after))
    keys = None if before is None else as_json(row)
    if row == now and len(plain) == len(columns):
        return keys, None
    told = None if before is None else {name: _text(value) for name, value in row.items()}
    return keys, as_json({"row": told, "key": _names(key, columns)}).decode()


def _names(key: Any, columns: Sequence[DecodedColumn]) -> dict[str, bool]:
    """Which columns the record's key has; fields that are no column's keep their names."""
    names = {column.path[-1]: column.name for column in columns}
    has = [name for name, value in (key.items() if isinstance(key, dict) else ()) if value is not None]
    # No JSON of Postgres has a NUL.
    return {names.get(name, name).replace("\0", ""): True for name in has}


def _text(value: Any) -> Any:
    # As Postgres reads a bytea.
    return "\\x" + value.hex() if isinstance(value, bytes) else value


def _at(of: Any, path: Sequence[str]) -> Any:
    for name in path:
        of = of.get(name) if isinstance(of, dict) else None
    return of
