"""
Propose a table for the first records of a topic.

Pure: runs where a query is set up. Invariant: every type holds the values of the records that were looked at. Later
ones may have others, so a table is proposed and never created.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import pyarrow as pa
from psycopg import sql
from pyspark.sql import types as t

from .decoded_columns import DecodedColumn
from .json_records import made, type_that_fits

_TIMES = ((t.DateType(), "date"), (t.TimestampType(), "timestamptz"), (t.TimestampNTZType(), "timestamp"))
_WIDER = {frozenset({"bigint", "numeric"}): "numeric"}


def create_statement(table: sql.Composable, values: Iterable[bytes | None], keys: Sequence[str] = ()) -> str:
    """
    The CREATE TABLE that fits these JSON records; empty if none of them is an object with fields.

    :param keys: what becomes the primary key.
    """
    by_name: dict[str, list[object]] = {}
    for value in values:
        try:
            found = json.loads(value or b"null")
        except ValueError:
            continue
        for name, one in found.items() if isinstance(found, dict) else ():
            by_name.setdefault(name, []).append(one)
    if not by_name:
        return ""
    parts = [sql.SQL("{} {}").format(sql.Identifier(name), sql.SQL(_type_of(of))) for name, of in by_name.items()]
    if keys:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, keys))))
    return sql.SQL("CREATE TABLE {} ({})").format(table, sql.SQL(", ").join(parts)).as_string(None)


def _type_of(values: Sequence[object]) -> str:
    there = [value for value in values if value is not None]
    found = {type_that_fits(value) for value in there}
    if found == {"text"}:
        for data_type, name in _TIMES:
            array, unfit = made(DecodedColumn("", ("",), data_type), list(there))
            if not unfit and isinstance(array, pa.Array):
                return name
    if len(found) == 1:
        return found.pop()
    # Values of several kinds: JSON holds any of them.
    return _WIDER.get(frozenset(found), "jsonb") if found else "text"
