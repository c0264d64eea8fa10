"""Rows of any columns on their way into a table without Spark: inline, staged, or half by each."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import psycopg
import pyarrow as pa
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema
from support.batches import make_batch
from support.rows import given_rows
from support.with_rooms import write_batch_in_tx

from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import ATTEMPT_COLUMN, encoded_columns
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagedRows, StagingTable

_batch_ids = itertools.count()


def publish(where, transport, struct, rows, mode="append", keys=(), order_by=None, *, table="events", **options):
    """Publish rows into a table: of the database that a URL names, or in the transaction of a connection."""
    into = destination(table, mode, tuple(keys), order_by, **options)
    if not isinstance(where, str):
        return write_batch_in_tx(where, into, sent(where.info.dsn, transport, struct, rows), batch=make_batch())
    given = sent(where, transport, struct, rows)
    with psycopg.connect(where) as connection:
        return write_batch_in_tx(connection, into, given, batch=make_batch())


def sent(url, transport, struct, rows):
    """The rows as the commit gets them; tuples in the order of the struct's columns. Staged ones have dead company."""
    # PySpark 3.5, on which `make matrix` runs, has no data sources written in Python.
    from pgonce.sink.data_source.stager import stage_rows

    half = {"inline": len(rows), "staged": 0, "both": len(rows) // 2}[transport]
    columns = encoded_columns(struct)
    staged = None
    if half < len(rows):
        table = StagingTable("query", "events", "run", next(_batch_ids))
        # Of attempt 2, which died, nothing was promised.
        attempts = ((2, rows[half : half + 1]), (3, rows[half:]))
        bodies = [CopyEncoder(struct, extra={ATTEMPT_COLUMN: n}).encode(arrow_rows(struct, of)) for n, of in attempts]
        stage_rows(url, table, columns, bodies)
        staged = StagedRows(table, ((3, len(rows) - half),))
    bodies = [CopyEncoder(struct).encode(arrow_rows(struct, rows[:half]))] if half else []
    return given_rows(columns, len(rows), lambda: iter(bodies), staged)


def arrow_rows(struct: t.StructType, rows: Sequence[Sequence[Any]]) -> pa.RecordBatch:
    """The rows as Spark would send them to a task; there may be none."""
    schema = to_arrow_schema(struct, timezone="UTC")
    arrays = [pa.array([row[number] for row in rows], field.type) for number, field in enumerate(schema)]
    return pa.record_batch(arrays, schema=schema)
