"""
The sinks that are compared.

Runs on the driver. Invariant: a contender says how a query writes, and nothing about what is measured; each gets the
same rows, a table of its own with the same columns, and reaches Postgres over the same TCP address.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from floors import copy_by_hand, copy_from_tasks, copy_same_bytes
from nothing import nothing_for_each_batch
from pyspark.sql import DataFrame
from pyspark.sql.streaming.readwriter import DataStreamWriter
from upserts import merge_by_hand

from pgonce import PostgresBatchWriter

if TYPE_CHECKING:
    # `make bench-diff` runs this with earlier versions, which may not have it.
    from pgonce.sink.options.definitions import RowOptions

# A partition of 500,000 rows is 45 MB: no load reaches this limit.
_ALL_INLINE = str(512 * 1024 * 1024)
_APPLY: RowOptions = {"mode": "apply", "change_feed": "debezium", "order_by": "source.lsn"}


@dataclass(frozen=True)
class Place:
    """Where a contender writes: ``url`` is for libpq, and ``jdbc_url`` names the same server for Java."""

    url: str
    jdbc_url: str
    table: str


@dataclass(frozen=True)
class Contender:
    """One way to write; ``table`` is None if no row reaches Postgres."""

    name: str
    write: Callable[[DataStreamWriter, Place], DataStreamWriter]
    table: str | None = None
    runs_each_frame: bool = True


def _nothing(writer: DataStreamWriter, _: Place) -> DataStreamWriter:
    return writer.format("nothing")


def _nothing_for_each_batch(writer: DataStreamWriter, _: Place) -> DataStreamWriter:
    return writer.foreachBatch(nothing_for_each_batch)


def _inline(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return _pgonce(writer, place).options(inlineBytes=_ALL_INLINE, receiver="off")


def _staged(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return _pgonce(writer, place).options(inlineBytes="0", receiver="off")


def _received(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return _pgonce(writer, place).option("receiver", "auto")


def _without_receiver(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return _pgonce(writer, place).option("receiver", "off")


def _pgonce(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    # Each round is another query, which writes the same table again.
    return writer.format("pgonce").options(url=place.url, table=place.table, independent="true")


def _batch_writer(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.foreachBatch(PostgresBatchWriter(place.url, table=place.table, independent=True))


def _decoding_writer(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.foreachBatch(PostgresBatchWriter(place.url, table=place.table, independent=True, decode="json"))


def _decoding_tasks(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return _pgonce(writer, place).option("decode", "json")


def _upserting_writer(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    batch_writer = PostgresBatchWriter(place.url, table=place.table, mode="upsert", keys=["id"], independent=True)
    return writer.foreachBatch(batch_writer)


def _upserting_by_default(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return _pgonce(writer, place).options(mode="upsert", keys="id")


def _applying_writer(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.foreachBatch(PostgresBatchWriter(place.url, table=place.table, independent=True, **_APPLY))


def _applying_newer(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    batch_writer = PostgresBatchWriter(place.url, table=place.table, independent=True, only_newer=True, **_APPLY)
    return writer.foreachBatch(batch_writer)


def _applying_by_default(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return _pgonce(writer, place).options(mode="apply", changeFeed="debezium", orderBy="source.lsn")


def _upserting_changes(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    upsert = PostgresBatchWriter(
        place.url, table=place.table, mode="upsert", keys=["id"], order_by="updated_at", independent=True
    )

    def without_deletes(frame: DataFrame, batch_id: int) -> None:
        upsert(frame.where("op <> 'd'").select("after.*"), batch_id)

    return writer.foreachBatch(without_deletes)


def _spark_jdbc(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    # Spark's default of 1,000 rows a statement is slower; the rival is set up as a user who tuned it would do.
    properties = {"driver": "org.postgresql.Driver", "reWriteBatchedInserts": "true", "batchsize": "10000"}

    def append(frame: DataFrame, _: int) -> None:
        # Spark sends an array and a JSON text as they are only if the driver may guess their types.
        url = f"{place.jdbc_url}&stringtype=unspecified"
        frame.write.jdbc(url, place.table, mode="append", properties=properties)

    return writer.foreachBatch(append)


def _by_hand(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.foreachBatch(merge_by_hand(place.url, place.jdbc_url, place.table))


def _tasks_copy(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.foreachBatch(copy_from_tasks(place.url, place.table))


def _copy_by_hand(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.foreachBatch(copy_by_hand(place.url, place.table))


def _same_bytes(writer: DataStreamWriter, place: Place) -> DataStreamWriter:
    return writer.foreachBatch(copy_same_bytes(place.url, place.table))


PYTHON_NOTHING = Contender("Python sink, does nothing", _nothing)
FOREACH_NOTHING = Contender("foreachBatch, does nothing", _nothing_for_each_batch)
INLINE = Contender('format("pgonce"), inline', _inline, "rows_inline")
# With its defaults.
PGONCE = Contender('format("pgonce")', _pgonce, "rows_pgonce")
# Small partitions travel in the commit message, and large ones are staged.
WITHOUT_RECEIVER = Contender('format("pgonce"), no receiver', _without_receiver, "rows_without_receiver")
STAGED = Contender('format("pgonce"), staged', _staged, "rows_staged")
RECEIVED = Contender('format("pgonce"), receiver', _received, "rows_received")
BATCH_WRITER = Contender("PostgresBatchWriter", _batch_writer, "rows_batch_writer")
SPARK_JDBC = Contender("foreachBatch with Spark JDBC", _spark_jdbc, "rows_spark_jdbc")
TASKS_COPY = Contender("tasks COPY into the target (not atomic)", _tasks_copy, "rows_tasks_copy")
COPY_BY_HAND = Contender("one COPY by hand, with a record of the batch", _copy_by_hand, "rows_copy_by_hand")
SAME_BYTES = Contender("one COPY of the same bytes (the limit)", _same_bytes, "rows_same_bytes", runs_each_frame=False)
WRITER_UPSERT = Contender("PostgresBatchWriter, upsert", _upserting_writer, "rows_writer_upsert")
PGONCE_UPSERT = Contender('format("pgonce"), upsert', _upserting_by_default, "rows_pgonce_upsert")
UPSERT_BY_HAND = Contender("Spark JDBC into a table, then ON CONFLICT", _by_hand, "rows_upsert_by_hand")
WRITER_APPLY = Contender("PostgresBatchWriter, apply", _applying_writer, "rows_writer_apply")
WRITER_ONLY_NEWER = Contender("PostgresBatchWriter, apply, onlyNewer", _applying_newer, "rows_writer_only_newer")
PGONCE_APPLY = Contender('format("pgonce"), apply', _applying_by_default, "rows_pgonce_apply")
# For comparison: it leaves deletes out, and so ends with too many rows.
CHANGES_UPSERT = Contender("PostgresBatchWriter, upsert, deletes left out", _upserting_changes, "rows_changes_upsert")

SMALL_BATCHES = (PYTHON_NOTHING, FOREACH_NOTHING, PGONCE, STAGED, BATCH_WRITER, COPY_BY_HAND, SPARK_JDBC)
LARGE_BATCHES = (
    PYTHON_NOTHING, FOREACH_NOTHING, PGONCE, INLINE, STAGED, BATCH_WRITER, SPARK_JDBC, TASKS_COPY, SAME_BYTES,
)  # fmt: skip
WIDE_ROWS = (PGONCE, STAGED, BATCH_WRITER, SPARK_JDBC)
UPSERTS = (WRITER_UPSERT, PGONCE_UPSERT, UPSERT_BY_HAND)
DECODING_WRITER = Contender("PostgresBatchWriter, decode=json", _decoding_writer, "rows_decoded")
DECODING = (DECODING_WRITER, Contender('format("pgonce"), decode=json', _decoding_tasks, "rows_decoded_by_tasks"))
"""Those that get the records of a topic as they are."""
