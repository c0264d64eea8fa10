"""
Put a change into Kafka's records as Debezium's connector for Postgres does.

Pure. Invariant: key and value are the JSON that Kafka Connect's JsonConverter writes, with Debezium's default settings:
with schemas if decimals are ``precise``, and else without them, and with this ``decimal.handling.mode``.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

from change_feed_source import UNAVAILABLE, Change, Row

Decimals = Literal["precise", "string", "double"]
"""Debezium's ``decimal.handling.mode``."""

_EPOCH = datetime.fromisoformat("1970-01-01T00:00:00Z")
_ONE = timedelta(microseconds=1)
# Made once: json.dumps with these settings makes another one for each value.
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
# What the connector took to see the first commit.
_DELAY_US = 150_000


class Record(NamedTuple):
    """A record of Kafka; ``value`` is None in a tombstone."""

    key: bytes
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def records_of(changes: Iterable[Change], decimals: Decimals = "string") -> Iterator[Record]:
    """The envelope of each change; a tombstone follows each delete."""
    sent_us = 0
    for change in changes:
        sent_us = max(sent_us, _microseconds(change.committed_at) + _DELAY_US) + 1
        key, headers = _key(change.key), _headers(change)
        value = _json(_envelope(change, sent_us, decimals))
        if decimals == "precise":
            key, value = _with_schema(_KEY_SCHEMA, key), _with_schema(_SCHEMA, value)
        yield Record(key, value, headers)
        if change.op == "d":
            yield Record(key, None, headers)


def _envelope(change: Change, sent_us: int, decimals: Decimals) -> dict[str, Any]:
    return {
        "before": _as_json(_image(_before(change), change, is_after=False), decimals),
        "after": _as_json(_image(change.after, change, is_after=True), decimals),
        "source": _source(change),
        "transaction": None,
        "op": change.op,
        **_times(sent_us),
    }


def _before(change: Change) -> Row | None:
    if change.identity == "full" or change.op == "d":
        return change.before
    # The log has nothing but the key, and that only if the row is gone.
    return None


def _image(row: Row | None, change: Change, *, is_after: bool) -> dict[str, Any] | None:
    if row is None:
        return None
    if change.identity == "full":
        return row._asdict()
    if not is_after:
        return dict.fromkeys(Row._fields) | {"id": row.id}
    return row._asdict() | ({"note": UNAVAILABLE} if change.note_unread else {})


def _as_json(row: dict[str, Any] | None, decimals: Decimals) -> dict[str, Any] | None:
    if row is None:
        return None
    amount, at = row["amount"], row["updated_at"]
    # A ZonedTimestamp always has the column's six digits.
    return row | {
        "amount": None if amount is None else _AMOUNTS[decimals](amount),
        "updated_at": at and at.isoformat(timespec="microseconds").replace("+00:00", "Z"),
    }


def _precise(amount: Decimal) -> str:
    unscaled = int(amount.scaleb(2))
    return b64encode(unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)).decode()


_AMOUNTS: dict[str, Callable[[Decimal], object]] = {"precise": _precise, "string": str, "double": float}


def _source(change: Change) -> dict[str, Any]:
    times = _times(_microseconds(change.committed_at))
    begin_lsn = "null" if change.begin_lsn is None else f'"{change.begin_lsn}"'
    return {
        "version": "3.5.0.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": times.pop("ts_ms"),
        "snapshot": change.snapshot,
        "db": "shop",
        "sequence": f'[{begin_lsn},"{change.lsn}"]',
        **times,
        "schema": "public",
        "table": "orders",
        "txId": change.transaction,
        "lsn": change.lsn,
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def _headers(change: Change) -> tuple[tuple[str, bytes], ...]:
    if change.other_key is None:
        return ()
    name = "__debezium.newkey" if change.op == "d" else "__debezium.oldkey"
    return ((name, _key(change.other_key)),)


def _key(key: int) -> bytes:
    return b'{"id":%d}' % key


def _with_schema(schema: bytes, payload: bytes) -> bytes:
    return b'{"schema":%s,"payload":%s}' % (schema, payload)


def _times(microseconds: int) -> dict[str, int]:
    return {"ts_ms": microseconds // 1000, "ts_us": microseconds, "ts_ns": microseconds * 1000}


def _microseconds(at: datetime) -> int:
    return (at - _EPOCH) // _ONE


def _json(value: Any) -> bytes:
    return _encode(value).encode()


def _field(field: str, kind: str, **more: object) -> dict[str, Any]:
    return {"type": kind, "optional": field != "id", "field": field, **more}


_DECIMAL = {"scale": "2", "connect.decimal.precision": "12"}
_ID = _field("id", "int64")
_ROW = {
    "type": "struct",
    "optional": True,
    "fields": [
        _ID,
        _field("customer", "string"),
        _field("amount", "bytes", name="org.apache.kafka.connect.data.Decimal", version=1, parameters=_DECIMAL),
        _field("note", "string"),
        _field("updated_at", "string", name="io.debezium.time.ZonedTimestamp", version=1),
    ],
    "name": "shop.public.orders.Value",
}
_STRINGS = ("version", "connector", "name", "snapshot", "db", "sequence", "schema", "table", "origin")
_NUMBERS = ("ts_ms", "ts_us", "ts_ns", "txId", "lsn", "xmin", "origin_lsn")
_SOURCE = {
    "type": "struct",
    "optional": False,
    "fields": [_field(n, "string") for n in _STRINGS] + [_field(n, "int64") for n in _NUMBERS],
    "field": "source",
}
_KEY_SCHEMA = _json({"type": "struct", "fields": [_ID], "optional": False, "name": "shop.public.orders.Key"})
_SCHEMA = _json(
    {
        "type": "struct",
        "optional": False,
        "fields": [
            *({**_ROW, "field": "before"}, {**_ROW, "field": "after"}, _SOURCE),
            *(_field(n, "string") for n in ("op", "transaction")),
            *(_field(n, "int64") for n in ("ts_ms", "ts_us", "ts_ns")),
        ],
        "name": "shop.public.orders.Envelope",
        "version": 2,
    }
)
