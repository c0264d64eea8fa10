"""
What the tests of routes have in common: rows, and the tables that they choose among.

Runs in: pytest. Invariant: nothing here waits, and it writes only what it is asked to commit.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import types as t
from support.committed_rows import settings
from support.rows import given_rows

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.routes import Routes, where_to
from pgonce.sink.writing.rows import Rows
from pgonce.sink.writing.write_batch import work_into

STRUCT = t.StructType([
    t.StructField("kind", t.StringType()),
    t.StructField("id", t.LongType()),
    t.StructField("name", t.StringType()),
])  # fmt: skip
COLUMNS = encoded_columns(STRUCT)
TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, name text);
CREATE TABLE clicks (id bigint, name text, kind text)
"""


def arrow(rows: list[tuple[str | None, int, str | None]]) -> pa.RecordBatch:
    """Rows as the Arrow batch that a task would get."""
    columns = list(zip(*rows, strict=True)) if rows else [[], [], []]
    types = (pa.string(), pa.int64(), pa.string())
    return pa.record_batch([pa.array(c, ty) for c, ty in zip(columns, types, strict=True)], names=STRUCT.names)


def routed(*rows: tuple[str | None, int, str | None]) -> Rows:
    """Rows of (kind, id, name), as tasks would send them."""
    return given_rows(COLUMNS, len(rows), lambda: [CopyEncoder(STRUCT).encode(arrow(list(rows)))])


def routes(tables: dict[str, Any], **beside: Any) -> Routes:
    """Settings that choose by ``kind``."""
    found = where_to(route="kind", tables=tables, **beside)
    assert isinstance(found, Routes)
    return found


def commit(url: str, batch: Any, where: Any, rows: Rows, sink_name: str | None = None) -> Verdict:
    """Commit a batch as a way in would."""
    return commit_batch(settings(url), batch, work_into(sink_name, where, rows))
