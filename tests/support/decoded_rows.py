"""
Records of a topic, as Spark's Kafka source gives them, decoded and written into a table without Spark.

Runs in: pytest. Invariant: the way of a record is that of a batch: reader, encoder, and what the commit writes.
"""

from __future__ import annotations

import datetime as dt

import psycopg
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.sent_rows import arrow_rows
from support.typed_rows import struct_of
from support.with_rooms import reader_of, work_into, write_batch_in_tx

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.unfit_rows import UnfitRows
from pgonce.sink.options.option import Way
from pgonce.sink.options.position_columns import RECORD_POSITIONS, written_type
from pgonce.sink.options.reading import read
from pgonce.sink.options.routes import where_of
from pgonce.sink.writing.rows import Rows

KAFKA = struct_of(
    {
        "key": t.BinaryType(),
        "value": t.BinaryType(),
        "topic": t.StringType(),
        "partition": t.IntegerType(),
        "offset": t.LongType(),
        "timestamp": t.TimestampType(),
        "timestampType": t.IntegerType(),
    }
)
SENT_AT = dt.datetime(2026, 1, 31, 12, tzinfo=dt.timezone.utc)


def kafka_batch(values, *, keys=None, partitions=None):
    """The records with these values, and with these keys and partitions if any are given; offsets count from 0."""
    keys, partitions = keys or [None] * len(values), partitions or [0] * len(values)
    records = zip(keys, values, partitions, range(len(values)), strict=True)
    return arrow_rows(KAFKA, [(key, value, "t", *place, SENT_AT, 0) for key, value, *place in records])


def where_records_go(**options):
    """The destination of records that are decoded."""
    return where_of(read({"decode": "json", **options}, Way.WRITER))


def write_records(url, values, *, table="t", most=1_000_000, record_keys=None, partitions=None, **options):
    """Write these records into the table; those that cannot be decoded are given back, as they would be put aside."""
    where = where_records_go(table=table, **options)
    rows = _rows(url, where, kafka_batch(values, keys=record_keys, partitions=partitions), most)
    with psycopg.connect(url) as connection:
        write_batch_in_tx(connection, where, rows)
    return list(rows.unfit())


def commit_records(url, values, *, partitions=None, **options):
    """Commit a batch of these records, whose bad rows are dead letters."""
    where = where_records_go(table="t", dead_letters=True, **options)
    rows = _rows(url, where, kafka_batch(values, partitions=partitions), 1_000_000)
    settings = CommitSettings(url, Remedies(independent=True), retry_timeout=0)
    return commit_batch(settings, make_planned_batch(0), work_into(None, where, rows))


def _rows(url, where, batch, most):
    reader = reader_of(where, KAFKA, settings=CommitSettings(url, retry_timeout=0))
    written = written_type(reader.struct_type, RECORD_POSITIONS, where)
    encoder, unfit = CopyEncoder(written), UnfitRows(most, RECORD_POSITIONS)
    body, fit = unfit.encode_others(encoder, reader.read(batch))
    return Rows(encoder.columns, lambda: len(fit), lambda: [body], unfit=lambda: tuple(unfit.rows))
