"""
Propose a table for the first records of a topic.

Pure: runs where a query is set up. Invariant: every type holds the values of the records that were looked at. Later
ones may have others, so a table is proposed and never created.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from psycopg import sql
from pyspark.sql import types as t

from .fields import DecodedColumn, may_be_named, type_that_fits
from .json_records import MALFORMED
from .values import made

_TIMES = ((t.DateType(), "date"), (t.TimestampType(), "timestamptz"), (t.TimestampNTZType(), "timestamp"))
_NUMBERS = {"bigint", "numeric"}


def create_statement(table: sql.Composable, values: Iterable[bytes | None], keys: Sequence[str] = ()) -> str:
    """
    The CREATE TABLE that fits these JSON records; empty if none of them is an object with fields.

    :param keys: what becomes the primary key.
    """
    by_name: dict[str, list[bytes]] = {}
    for value in values:
        try:
            found = msgspec.json.decode(value or b"", type=dict[str, msgspec.Raw])
        except MALFORMED:
            continue
        for name, raw in found.items() if all(map(may_be_named, found)) else ():
            by_name.setdefault(name, []).append(bytes(raw))
    if not by_name:
        return ""
    # A key that no value has may be in the records' keys.
    by_name |= {key: [] for key in keys if key not in by_name}
    parts = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(_type_of(raws))) for name, raws in by_name.items()]
    if keys:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, keys))))
    return sql.SQL("CREATE TABLE {} ({})").format(table, sql.SQL(", ").join(parts)).as_string(None)


def _type_of(raws: Sequence[bytes]) -> str:
    there = [raw for raw in raws if raw != b"null"]
    found = {type_that_fits(raw) for raw in there} or {"text"}
    if found == {"text"} and there:
        try:
            texts = list(map(msgspec.json.decode, there))
        except MALFORMED:
            return "text"
        for data_type, name in _TIMES:
            if not made(DecodedColumn("", ("",), data_type), texts)[1]:
                return name
    if found == _NUMBERS:
        return "numeric"
    # Values of several kinds: JSON holds any of them.
    return found.pop() if len(found) == 1 else "jsonb"
