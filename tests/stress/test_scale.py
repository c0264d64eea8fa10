"""
A thousand partitions, thousands of tasks, 1,600 columns or a row of 100 MB work.

The times are in docs/performance.md; here only what would grow with the square of something is bounded.
"""

from __future__ import annotations

import pickle
import time

import pytest
from pyspark.sql import types as t
from support.benchmark_modules import benchmark_module
from support.committed_rows import STRUCT, TABLE
from support.data_source_with_rooms import commit_parcels
from support.fixtures.driver import wait_until
from support.patience import PATIENCE_SECONDS
from support.sent_rows import arrow_rows, publish

from pgonce import PostgresBatchWriter
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination
from pgonce.sink.options.sink_options import parse_options
from pgonce.sink.positions import EncodedRows
from pgonce.sink.writing.checked_table import left_out, plan_columns
from pgonce.sink.writing.table.catalogue import TargetColumn, TargetTable

MEGABYTE = 1_000_000


@pytest.fixture
def admin(admin, url):
    """A connection to a database with a ledger and the target."""
    ensure_ledger(url)
    admin.execute(TABLE)
    return admin


def test_four_thousand_tasks_and_a_thousand_partitions(admin, url, tmp_path):
    """Their messages are small, and their batch is committed in seconds; its offsets are in the ledger."""
    with benchmark_module("scale_checkpoint") as module:
        checkpoint = module.checkpoint_of(tmp_path, "11111111-1111-4111-8111-111111111111", 1000)
    options = parse_options({"url": url, "table": "events", "checkpointLocation": str(tmp_path)}, overwrite=False)
    rows = EncodedRows(CopyEncoder(STRUCT).encode(arrow_rows(STRUCT, [(1, "a row")])), 1)
    for batch_id in range(2):
        origin = checkpoint.plan(batch_id)
        sent = [pickle.dumps(Parcel(origin, task, 1, inline=(rows,))) for task in range(4000)]
        assert max(map(len, sent)) < 1000
        began = time.perf_counter()
        parcels = [pickle.loads(message) for message in sent]
        assert commit_parcels(options, encoded_columns(STRUCT), parcels, batch_id) is Verdict.NEW
        assert time.perf_counter() - began < 10
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (8000,)
    counted = "SELECT count(*) FROM jsonb_object_keys((SELECT end_offsets -> '0' -> 'orders' FROM pgonce.writers))"
    assert admin.execute(counted).fetchone() == (1000,)


def wide(columns):
    """A frame's type and a table that fit, with so many columns."""
    struct = t.StructType([t.StructField(f"c{n}", t.IntegerType()) for n in range(columns)])
    of_each = {"not_null": False, "has_default": False, "generated": "", "primary_key": None}
    named = tuple(TargetColumn(f"c{n}", "integer", "integer", 23, -1, **of_each) for n in range(columns))
    of_table = {"rules": False, "row_security": False, "unsafe_partition": None}
    table = TargetTable(1, "public", "events", "r", "p", **of_table, columns=named)
    return encoded_columns(struct), table


def test_a_table_of_1600_columns_is_planned_in_a_moment():
    """Comparing each column with all others took a second or two."""
    encoded, table = wide(1600)
    began = time.process_time()
    assert len(plan_columns(table, encoded, destination("events", "append", (), None))) == 1600
    assert left_out(encoded, encoded, table) == ""
    assert time.process_time() - began < 0.3


def large(kind, megabytes):
    """A frame's type and a row of a number and one large value."""
    size = int(megabytes * MEGABYTE)
    types = {"text": t.StringType(), "bytea": t.BinaryType(), "jsonb": t.StructType().add("said", t.StringType())}
    values = {"text": "x" * size, "bytea": b"x" * size, "jsonb": {"said": "x" * size}}
    return t.StructType([t.StructField("id", t.LongType()), t.StructField("note", types[kind])]), (1, values[kind])


@pytest.mark.parametrize(("kind", "transport"), [("text", "inline"), ("bytea", "staged"), ("jsonb", "inline")])
def test_a_value_of_a_hundred_megabytes_is_stored_whole(admin, url, kind, transport):
    """All its bytes arrive, whatever its type."""
    admin.execute(f"CREATE TABLE large (id bigint, note {kind})".encode())
    admin.execute("ALTER TABLE large ALTER note SET STORAGE EXTERNAL")
    struct, row = large(kind, 100)
    publish(url, transport, struct, [row], table="large")
    value = "note ->> 'said'" if kind == "jsonb" else "note"
    assert admin.execute(f"SELECT id, octet_length({value}) FROM large".encode()).fetchall() == [(1, 100 * MEGABYTE)]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("way", ["sink", "foreachBatch"])
def test_a_row_of_a_hundred_megabytes_comes_through_spark(spark, admin, url, checkpoint, way):
    """With Spark's own limits as they are, and no option set."""
    admin.execute("CREATE TABLE large (id bigint, note text)")
    source = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=1, numPartitions=1).load()
    note = f"repeat(char(97 + CAST(value AS int) % 26), {100 * MEGABYTE}) AS note"
    writer = source.selectExpr("value AS id", note).writeStream.option("checkpointLocation", checkpoint)
    writer = writer.trigger(processingTime="1 hour")
    if way == "sink":
        query = writer.format("pgonce").options(url=url, table="large").start()
    else:
        query = writer.foreachBatch(PostgresBatchWriter(url, table="large")).start()
    assert wait_until(lambda: query.lastProgress or not query.isActive, PATIENCE_SECONDS)
    assert query.exception() is None
    query.stop()
    found = admin.execute("SELECT id, octet_length(note) FROM large").fetchall()
    assert found == [(0, 100 * MEGABYTE)]
