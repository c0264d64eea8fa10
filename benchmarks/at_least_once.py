"""
The writer in Java without its positions: rows come as fast as it can, and a failure writes some of them twice.

Runs on the driver. Invariant: all else stands as it is in real-time mode (threads, flushes, sessions, encoding); the
two statements, which come from the driver, have the same parameters, write the same rows, and keep nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

from psycopg import sql

from pgonce.real_time import java_writer, start
from pgonce.real_time.statements import flush_statement
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.writing.checked_table import ColumnPlan
from pgonce.sink.writing.table.catalogue import TargetTable

# Each partition begins where its task begins.
_CLAIM = """
SELECT given.next_offset FROM (VALUES (
    CAST(? AS int8), CAST(? AS text), CAST(? AS text), CAST(? AS int4), CAST(? AS int8), CAST(? AS uuid),
    CAST(? AS int4), CAST(? AS int8), CAST(? AS int8), CAST(? AS int8), CAST(? AS int8), CAST(? AS uuid)
)) AS given (writer_id, run_id, topic, partition, next_offset)
"""
_NOT_MOVED = """moved AS (
    SELECT given.next_offset FROM (VALUES (
        CAST(? AS int8), CAST(? AS int4), CAST(? AS int8), CAST(? AS text), CAST(? AS int4), CAST(? AS uuid),
        CAST(? AS int8), CAST(? AS int8)
    )) AS given (next_offset)
), written AS ("""


def _flush(table: TargetTable, columns: Sequence[EncodedColumn], plan: Sequence[ColumnPlan]) -> sql.SQL:
    exact = flush_statement(table, columns, plan).as_string(None)
    before, between, after = exact.partition("moved AS (")
    _, written, after = after.partition("), written AS (")
    assert between, exact
    assert written, exact
    return sql.SQL(before + _NOT_MOVED + after)


class _Unrecorded(threading.Thread):
    """In place of the thread that records positions, of which there are none."""

    def __init__(self, *_: object) -> None:
        super().__init__(daemon=True)


@contextmanager
def at_least_once() -> Iterator[None]:
    """While the block runs, queries in real time start without positions."""
    with (
        patch.object(java_writer, "CLAIM", _CLAIM),
        patch.object(start, "flush_statement", _flush),
        patch.object(start, "Recorder", _Unrecorded),
    ):
        yield
