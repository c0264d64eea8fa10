"""
The least work that such a batch can take.

Runs on the driver, and the COPYs of tasks in executors. Invariant: neither is a usable sink: each task commits its rows
by itself, and bytes that were made before are always the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark.sql import DataFrame

from pgonce.sink.encoding.copy_encoder import HEADER, TRAILER, CopyEncoder


def copy_from_tasks(url: str, table: str) -> Callable[[DataFrame, int], None]:
    """Each task copies its rows into the target, on a connection of its own."""

    def write(frame: DataFrame, _: int) -> None:
        struct_type = frame.schema

        def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            encoder = CopyEncoder(struct_type)
            _copy(url, table, struct_type.names, map(encoder.encode, batches))
            yield pa.record_batch([pa.array([encoder.rows], pa.int64())], names=["rows"])

        frame.mapInArrow(copy, "rows bigint").collect()

    return write


def copy_by_hand(url: str, table: str) -> Callable[[DataFrame, int], None]:
    """What people write by hand: one connection, and a transaction of one COPY and one row that records the batch."""
    kept: list[psycopg.Connection] = []

    def write(frame: DataFrame, batch_id: int) -> None:
        encoder = CopyEncoder(frame.schema)
        bodies = list(map(encoder.encode, frame.toArrow().to_batches()))
        if not kept:
            kept.append(psycopg.connect(url, autocommit=True))
            kept[0].execute("CREATE TABLE IF NOT EXISTS recorded_by_hand (batch_id bigint, table_name text)")
        with kept[0].transaction():
            _copy_on(kept[0], table, frame.columns, bodies)
            kept[0].execute("INSERT INTO recorded_by_hand VALUES (%s, %s)", [batch_id, table])

    return write


def copy_same_bytes(url: str, table: str) -> Callable[[DataFrame, int], None]:
    """One connection copies the bytes of the first batch again and again; only the first one runs its frame."""
    made: list[bytes] = []

    def write(frame: DataFrame, _: int) -> None:
        if not made:
            encoder = CopyEncoder(frame.schema)
            made.extend(map(encoder.encode, frame.toArrow().to_batches()))
        _copy(url, table, frame.columns, made)

    return write


def _copy(url: str, table: str, columns: list[str], bodies: Iterator[bytes] | list[bytes]) -> None:
    with psycopg.connect(url) as connection:
        _copy_on(connection, table, columns, bodies)


def _copy_on(
    connection: psycopg.Connection, table: str, columns: list[str], bodies: Iterator[bytes] | list[bytes]
) -> None:
    statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        sql.Identifier(table), sql.SQL(", ").join(map(sql.Identifier, columns))
    )
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(HEADER)
        for body in bodies:
            copy.write(body)
        copy.write(TRAILER)
