"""
What the tests of routes have in common: rows, and the tables that they choose among.

Runs in: pytest. Invariant: nothing here waits, and it writes only what it is asked to commit.
"""

from __future__ import annotations

from typing import Any

from pyspark.sql import types as t
from support.committed_rows import settings
from support.typed_rows import typed_rows
from support.with_rooms import work_into

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.options.routes import Routes, where_to
from pgonce.sink.writing.rows import Rows

TYPES = {"kind": t.StringType(), "id": t.LongType(), "name": t.StringType()}
TABLES = """
CREATE TABLE orders (id bigint PRIMARY KEY, name text);
CREATE TABLE clicks (id bigint, name text, kind text)
"""


def routed(*rows: tuple[str | None, int, str | None]) -> Rows:
    """Rows of (kind, id, name), as tasks would send them."""
    return typed_rows(TYPES, rows)


def routes(tables: dict[str, Any], **beside: Any) -> Routes:
    """Settings that choose by ``kind``."""
    found = where_to(route="kind", tables=tables, **beside)
    assert isinstance(found, Routes)
    return found


def commit(url: str, batch: Any, where: Any, rows: Rows, sink_name: str | None = None) -> Verdict:
    """Commit a batch as a way in would."""
    return commit_batch(settings(url), batch, work_into(sink_name, where, rows))
