"""Of the staged rows, Postgres picks those that were promised and are not stored yet."""

from __future__ import annotations

import pyarrow as pa
import pytest
from psycopg import sql
from pyspark.sql import types as t

from pgonce.sink.data_source.stager import stage_rows
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import ATTEMPT_COLUMN, encoded_columns
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.staging import StagedRows, StagingTable

TABLE = StagingTable("query", "events", "run", 7)
# Names that need quotes, since they are people's own.
NAMES = ('the "topic"', "partition", "offset")
STRUCT = t.StructType([
    t.StructField(NAMES[0], t.StringType()),
    t.StructField(NAMES[1], t.IntegerType()),
    t.StructField(NAMES[2], t.LongType()),
])  # fmt: skip


pytestmark = pytest.mark.usefixtures("ledger")


def stage(url, mark, rows):
    """Rows under a mark: topic, partition and offset."""
    topics, partitions, offsets = zip(*rows, strict=True)
    arrays = [pa.array(topics), pa.array(partitions, pa.int32()), pa.array(offsets, pa.int64())]
    encoder = CopyEncoder(STRUCT, extra={ATTEMPT_COLUMN: mark})
    stage_rows(url, TABLE, encoded_columns(STRUCT), [encoder.encode(pa.record_batch(arrays, schema=schema()))])


def schema():
    """The columns as Arrow has them."""
    return pa.schema([(NAMES[0], pa.string()), (NAMES[1], pa.int32()), (NAMES[2], pa.int64())])


def wanted(admin, staged):
    """The rows that a commit would take."""
    names = sql.SQL(", ").join(map(sql.Identifier, NAMES))
    statement = sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY 1, 2, 3").format(names, TABLE.identifier, staged.wanted)
    return admin.execute(statement).fetchall()


def test_rows_below_the_end_of_their_own_partition_are_left_out(admin, url):
    """Those of a partition, or a topic, of which nothing is stored are wanted; those of other attempts never are."""
    old = [("orders", 0, 4), ("orders", 11, 9), ("it's 1 refund", 1, 2)]
    new = [("it's 1 refund", 1, 3), ("orders", 0, 5), ("orders", 1, 0), ("orders", 11, 10), ("unheard of", 0, 0)]
    stage(url, 3, old + new)
    stage(url, 4, [("orders", 5, 5)])
    stored = {"0": {"orders": {"0": 5, "11": 10}, "it's 1 refund": {"1": 3}}}
    columns = PositionColumns(*NAMES, written=True)
    staged = StagedRows(TABLE, ((3, len(old + new)),), columns, stored)
    assert wanted(admin, staged) == new
    assert staged.count_dropped(admin) == len(old)
    assert wanted(admin, StagedRows(TABLE, ((3, len(old + new)),), columns)) == sorted(old + new)
