"""
Bad rows in a batch: the dead letters and the table that they leave.

Runs in: pytest. Invariant: they go through the commit that every way in uses, without Spark.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import types as t
from support.typed_rows import Columns, commit_typed

from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.encoding.unfit_rows import UnfitRow
from pgonce.sink.options.destination import destination

COLUMNS = {"id": t.LongType(), "name": t.StringType(), "amount": t.LongType()}


def committed(
    url: str,
    rows: Sequence[Sequence[Any]],
    number: int = 0,
    table: str = "events",
    mode: str = "append",
    *,
    columns: Columns = COLUMNS,
    staged: bool = False,
    not_encoded: tuple[UnfitRow, ...] = (),
    **options: Any,
) -> Verdict:
    """Commit a batch whose bad rows are dead letters."""
    how = {"keys": (), "order_by": None, "dead_letters": True, **options}
    where = destination(table, mode, how.pop("keys"), how.pop("order_by"), **how)
    return commit_typed(url, number, where, columns, rows, staged=staged, not_encoded=not_encoded)


def letters(admin: psycopg.Connection) -> list[tuple[int | None, str | None, str]]:
    """What is noted of the dead letters: the row's id, the column, the code."""
    return admin.execute(
        "SELECT (row_data ->> 'id')::int, column_name, code FROM pgonce.dead_letters ORDER BY dead_letter_id"
    ).fetchall()


def stored(admin: psycopg.Connection, table: str = "events") -> list[int]:
    """The ids in the table."""
    return [row[0] for row in admin.execute(f"SELECT id FROM {table} ORDER BY id".encode()).fetchall()]


def unfit_row(**row: Any) -> UnfitRow:
    """A row of these values whose name could not be encoded."""
    return UnfitRow(json.dumps({**row, "name": {"base64": "AA=="}}), "name", "NUL_IN_TEXT", "A NUL.")


def before_insert(admin: psycopg.Connection, body: str) -> None:
    """Give the table a trigger that sees, and may change, each new row; ``body`` is in PL/pgSQL."""
    admin.execute(
        sql.SQL(
            "CREATE FUNCTION seen() RETURNS trigger LANGUAGE plpgsql AS {}; "
            "CREATE TRIGGER seen BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION seen()"
        ).format(sql.Literal(f"BEGIN {body} RETURN new; END"))
    )
