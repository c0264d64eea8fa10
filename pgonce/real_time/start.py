"""
Start a query in real-time or continuous mode, exactly once, on a checkpoint that each run has for itself.

Runs on the driver. Invariant: when the query begins to read, the ledger has a run that is its own, no task of another
run can write, and each partition is read from where its rows end in the table, or from before that: a task passes over
records that are stored. All that can be refused is refused before the run begins, because an older one ends then. The
query keeps its id, which its own location has; the checkpoints of the runs are inside that,
and each run begins at the positions in the ledger, whatever checkpoints of older runs say.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.utils import is_remote
from typing_extensions import Unpack

from pgonce.offsets_store.checkpoint.files import open_location
from pgonce.offsets_store.checkpoint.log_entries import query_id_text
from pgonce.offsets_store.checkpoint.reader import REAL_TIME_RUNS, Checkpoint
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import NoCheckpointError, RefusedBatch, bad_option
from pgonce.offsets_store.ledger.failures import failures_kept
from pgonce.offsets_store.offsets import Offsets, kafka_positions
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.errors import SparkError
from pgonce.sink.options.definitions import RealTimeOptions
from pgonce.sink.options.destination import destination_of
from pgonce.sink.options.option import Way
from pgonce.sink.options.position_columns import KAFKAS_NAMES, PositionColumns, written_type
from pgonce.sink.options.reading import read, takes_options
from pgonce.sink.options.sink_options import commit_settings_of
from pgonce.sink.writing.first_look import looking
from pgonce.sink.writing.write_batch import named_sink

from .java_writer import java_writer, load_classes, refuse_other_types, sent, writer_settings
from .jdbc import jdbc_url
from .offsets import KafkaSource, stored_positions
from .plan import refuse_not_continuous, refuse_not_real_time, refuse_other_plans
from .recorder import Recorder
from .run import Run

_log = logging.getLogger("pgonce")

# A task of a continuous query gives a row on when its next fetch is answered, and brokers wait up to 500 ms for one.
_SOON = {"kafka.fetch.max.wait.ms": "5"}
# The executors of an application that has just begun register one by one.
_EXECUTORS_SECONDS = 30
_STOPS_ACTIVE = "spark.sql.streaming.stopActiveRunOnRestart"
# Spark 4.1 has the trigger for Scala alone.
_FIRST_REAL_TIME = (4, 2)


@takes_options(Way.REAL_TIME)
def start_real_time(
    spark: SparkSession,
    *,
    kafka: Mapping[str, object],
    rows: Callable[[DataFrame], DataFrame],
    url: str = "",
    real_time: str | None = None,
    continuous: str | None = None,
    **options: Unpack[RealTimeOptions],
) -> StreamingQuery:
    """
    Start a query from Kafka into one table whose rows are visible milliseconds after their records, exactly once.

    :param kafka: the options of Spark's Kafka source. ``startingOffsets`` counts only for a query that is new.
    :param rows: makes the rows of the records. It may select, filter and (in real time) explode, and must keep the
        position columns (topic, partition and offset, if ``position_columns`` does not name others).
    :param real_time: the trigger ``realTime``: how long a batch of Spark's is, such as ``"1 minute"``.
    :param continuous: the trigger ``continuous``: how long an epoch is, such as ``"1 second"``.
    :raises ConfigurationError: for options that cannot work.
    :raises SparkError: for a query, a session or a Spark that cannot do this.
    :raises OffsetsError: if the brokers do not have what is to be read next.
    :raises RefusedBatch: as a batch is, where another query feeds the table.
    """
    _refuse_other_sessions(spark, real_time, continuous)
    given = read({"url": url, **options}, Way.REAL_TIME)
    if "checkpoint_location" not in given:
        raise bad_option(
            "OPTION_MISSING",
            "checkpoint_location is not set, so the query would be another one at each start.",
            "Set it to a folder of this query's own.",
        )
    given.setdefault("position_columns", KAFKAS_NAMES)
    source = KafkaSource({**_SOON, **kafka} if continuous else kafka)
    load_classes(spark)
    location: str = given["checkpoint_location"]
    run = Run(
        commit_settings_of(given), destination_of(given), (), query_id_of(location),
        given["query_name"], location, given["sink_name"],
    )  # fmt: skip
    _refuse_active(spark, run)
    jdbc = jdbc_url(given["executor_url"] or run.settings.url, run.run_id, run.settings.lock_timeout)
    with failures_kept(run.settings.url, run.failed("planner")):
        with looking(run.settings.url) as connection:
            sink_name = named_sink(connection, run.sink_name, run.destination).name
        last, stored = stored_positions(run.settings.url, run.query_id, sink_name, given["replaces"])
        if stored is None and not given["replaces"]:
            refuse_unknown_past(location)
        start = source.start(stored)
        _refuse_too_few_cores(spark, start)
    records = spark.readStream.format("kafka").options(**source.options_from(start)).load()
    frame = rows(records)
    topic, partition, offset = given["position_columns"]
    positions = PositionColumns(topic, partition, offset, given["write_positions"])
    positions.check(frame.schema)
    run.columns = encoded_columns(written_type(frame.schema, positions))
    refuse_other_types(run.columns)
    one_row_a_record = refuse_other_plans(frame, records, positions)
    if real_time is not None:
        refuse_not_real_time(spark, frame, source.options, real_time)
    else:
        refuse_not_continuous(spark, frame)
    stream = sent(frame, positions, run.columns).writeStream
    if real_time is not None:
        stream = stream.outputMode("update").trigger(realTime=real_time)  # type: ignore[call-overload]
    else:
        stream = stream.outputMode("append").trigger(continuous=continuous or "")
    if run.query_name:
        stream = stream.queryName(run.query_name)
    made: list[str] = []
    with failures_kept(run.settings.url, run.failed("planner")):
        run.begin(
            last, source.known(start, stored), start, source.brokers,
            lambda: made.append(new_checkpoint(location, run.query_id)),
        )  # fmt: skip
    # From here on, older runs cannot write.
    settings = writer_settings(run, jdbc, one_row_a_record=one_row_a_record, tasks_report=real_time is not None)
    writer = java_writer(spark, run, settings, start)
    wrapped: Any = stream.option("checkpointLocation", made[-1])
    wrapped._jwrite.foreach(writer)
    query: StreamingQuery = wrapped.start()
    Recorder(query, run, writer if real_time is not None else None, spark.sparkContext, source.brokers).start()
    remove_older(spark, location, made[-1])
    return query


def _refuse_active(spark: SparkSession, run: Run) -> None:
    """Refuse what Spark would refuse when the run has begun."""
    what = None
    if run.query_name is not None and run.query_name in {query.name for query in spark.streams.active}:
        what = f"A query {run.query_name!r} runs in this session."
    jvm: Any = spark._jvm
    query_id = jvm.java.util.UUID.fromString(run.query_id)
    is_active = spark._jsparkSession.sharedState().activeStreamingQueries().containsKey(query_id)
    if is_active and spark.conf.get(_STOPS_ACTIVE, "true") != "true":
        what = f"The query with the checkpoint location {run.checkpoint_location} runs, and {_STOPS_ACTIVE} is false."
    if what:
        raise SparkError.usual("QUERY_RUNNING", what, "Stop it first, or give this one another query_name.")


def _refuse_other_sessions(spark: SparkSession, real_time: str | None, continuous: str | None) -> None:
    if is_remote():
        raise SparkError.usual(
            "SPARK_CONNECT",
            "A client of Spark Connect cannot start a query in real-time or continuous mode with pgonce.",
            "Start it in a classic session.",
        )
    if (real_time is None) is (continuous is None):
        raise bad_option(
            "BAD_OPTION",
            "Exactly one of real_time and continuous must be given.",
            'Write real_time="1 minute", or continuous="1 second".',
        )
    if real_time is not None and tuple(map(int, spark.version.split(".")[:2])) < _FIRST_REAL_TIME:
        raise SparkError.usual(
            "SPARK_TOO_OLD",
            f"PySpark {spark.version} has no real-time mode, which came with PySpark 4.2.",
            "Use a newer Spark, or continuous.",
        )


def _refuse_too_few_cores(spark: SparkSession, start: Offsets) -> None:
    """Spark runs a task a partition for as long as the batch, and says nothing of those for which no core is left."""
    if spark.conf.get("spark.dynamicAllocation.enabled", "false") == "true":
        # Executors come when tasks wait for them.
        return
    context: Any = spark.sparkContext._jsc.sc()
    partitions = sum(1 for _ in kafka_positions(start))
    profile = context.resourceProfileManager().defaultResourceProfile()
    until = time.monotonic() + (0 if context.isLocal() else _EXECUTORS_SECONDS)
    while (cores := context.maxNumConcurrentTasks(profile)) < partitions and time.monotonic() < until:
        time.sleep(0.2)
    if cores < partitions:
        raise SparkError.usual(
            "TOO_FEW_CORES",
            f"The topics have {partitions} partitions, and the application can run {cores} tasks at a time: Spark "
            "would never read some of the partitions.",
            "Give the application cores for a task of each partition, or read fewer topics in this query.",
        )


# The newest of the older ones stays, for people who want to look at it.
_KEPT = 1


def query_id_of(location: str) -> str:
    """
    The id that the query keeps at this location: Spark's own if the query ran in micro-batches there, else a new one.

    :raises CheckpointError: if the location cannot be read or written.
    """
    try:
        return Checkpoint(location).query_id()
    except NoCheckpointError:
        _write_id(location, str(uuid4()), replace=False)
        # Of two drivers that start here for the first time, the one that was first has named the query.
        return Checkpoint(location).query_id()


def refuse_unknown_past(location: str) -> None:
    """
    Refuse a query that has run at this location, and of which the ledger knows nothing.

    :raises RefusedBatch: UNKNOWN.
    :raises CheckpointError: if the location cannot be read.
    """
    files = open_location(location)
    if files.names(REAL_TIME_RUNS) or files.names("offsets"):
        raise RefusedBatch.usual(
            "UNKNOWN",
            f"A query has run with the checkpoint location {files.shown}, but this ledger does not know where its rows "
            "in this table end: the database was restored to a time before its first start, or url names another "
            "database, or the query wrote to a table of another name, or with another sink.",
            "Restore the database and start the query again. Or name the table, the database and sink_name as they "
            "were. If its records are to be read again from startingOffsets, give it a new checkpoint location.",
        )


def new_checkpoint(location: str, query_id: str) -> str:
    """
    A checkpoint without any batch, which Spark takes for one of this query.

    :raises CheckpointError: if it cannot be written.
    """
    checkpoint = f"{location.rstrip('/')}/{REAL_TIME_RUNS}/{time.time_ns()}"
    _write_id(checkpoint, query_id)
    return checkpoint


def _write_id(location: str, query_id: str, *, replace: bool = True) -> None:
    CheckpointWriter(location).write("metadata", query_id_text(query_id).encode(), replace=replace)


def remove_older(spark: SparkSession, location: str, newest: str) -> None:
    """Remove checkpoints of runs before the ``newest``, as far as that can be done: they are of no use."""
    context: Any = spark.sparkContext
    try:
        folder = context._jvm.org.apache.hadoop.fs.Path(f"{location.rstrip('/')}/{REAL_TIME_RUNS}")
        files = folder.getFileSystem(context._jsc.hadoopConfiguration())
        paths = sorted((status.getPath() for status in files.listStatus(folder)), key=lambda path: path.getName())
        # By name: a clock may have gone back.
        older = [path for path in paths if path.getName() != newest.rpartition("/")[2]]
        for path in older[: max(0, len(older) - _KEPT)]:
            files.delete(path, True)
    except Exception as error:  # noqa: BLE001 (Spark gives some errors of its file systems classes of its own)
        _log.info("checkpoints of older runs were not removed: %s", type(error).__name__)
