"""
The values that stand for one which the source could not read, and the SQL that tells them from others.

Pure; its SQL runs in the commit, on rows that were gathered. Invariant: a column whose values might stand for others is
compared in every form in which Debezium sends its placeholder, or it would overwrite the stored value.

Debezium's ``UnchangedToastedPlaceholder`` has these forms: the text itself, its bytes, and, for a column that is an
array, an array of the text, of its bytes, of a UUID that is made from them, or of the bytes as numbers. An hstore is a
map, or JSON, with the text as key and as value.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterable

from psycopg import sql

from ...encoding.encoded_types import EncodedColumn
from ..checked_table import ColumnPlan
from ..statements import value_of
from .key_plan import Upsert


def unread_columns(
    plan: Iterable[ColumnPlan], encoded: Iterable[EncodedColumn], upsert: Upsert | None
) -> dict[str, sql.Composable]:
    """
    The target's columns whose value may be one that the source could not read, with the condition that says so.

    The condition is about the columns of the gathered rows, and is never null.
    """
    if upsert is None or upsert.existing.keep_where is None:
        return {}
    types = {column.name: column.postgres_type for column in encoded}
    compared = (*upsert.keys, upsert.order_by)
    found = {}
    for column in plan:
        forms = _forms(upsert.existing.keep_where, types.get(column.source, ""))
        if forms and column not in compared:
            found[column.target] = _is_one_of(column.source, types[column.source], forms)
    return found


def _is_one_of(name: str, postgres_type: str, forms: Iterable[object]) -> sql.Composable:
    # Not ANY, for which an array of arrays is one array.
    equal = sql.SQL("{} OPERATOR(pg_catalog.=) {}::pg_catalog.{}")
    return sql.SQL("(({}) IS TRUE)").format(
        sql.SQL(" OR ").join(
            equal.format(sql.Identifier(name), sql.Literal(form), sql.SQL(postgres_type)) for form in forms
        )
    )


def _forms(text: str, postgres_type: str) -> list[object]:
    """What stands for an unread value in a column that is encoded as this type; nothing, if it cannot hold such."""
    as_bytes, as_map = text.encode(), json.dumps({text: text}, ensure_ascii=False, separators=(",", ":"))
    made = uuid.UUID(bytes=hashlib.md5(as_bytes, usedforsecurity=False).digest(), version=3)
    forms: dict[str, list[object]] = {
        "text": [text, as_map],
        "bytea": [as_bytes],
        "jsonb": [json.dumps(text), as_map],
        "text[]": [[text], [str(made)]],
        "bytea[]": [[as_bytes]],
        "int4[]": [list(as_bytes)],
        "int8[]": [list(as_bytes)],
    }
    return forms.get(postgres_type, [])


def value_if_read(column: ColumnPlan, is_unread: sql.Composable) -> sql.Composable:
    """A gathered column's value, or NULL; what stands for an unread value need not be one of the column's type."""
    return sql.SQL("CASE WHEN {} THEN NULL ELSE {} END").format(is_unread, value_of(column))
