"""
Make the writer that runs in Spark's tasks, which is Java, and give its jar to the session.

Runs on the driver. The jar is made of ``java/`` when the wheel is built, and is a part of it. Invariant: the writer is
given finished statements; what it does not decide it cannot decide differently from Python.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import CharType, DateType, StringType, TimestampType, VarcharType

from pgonce.offsets_store.offsets import Offsets, by_partition, kafka_positions
from pgonce.offsets_store.postgres.refused_rows import REMEDIES
from pgonce.offsets_store.postgres.translate import TRANSIENT_CLASSES, TRANSIENT_SQLSTATES
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.errors import SparkError, TypeMappingError
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.positions import quoted

from .jdbc import JdbcUrl
from .run import Run
from .statements import CLAIM, DISPUTE, LOOK

WRITER_JAR = Path(__file__).with_name("pgonce-real-time.jar")
JDBC_DRIVER = "org.postgresql:postgresql:42.7.8"
# An address leads to a standby, until it is promoted.
_ALSO_PASSING = ("25006",)
# The statement was composed for the table as it was when the run began.
_REMEDIES = {
    "42": (
        "TARGET_CHANGED",
        "Look at what has changed since this run began: a column of the table, or a function that a trigger calls.",
    ),
    **REMEDIES,
    # What those say of these speaks of upserts, of functions and of messages, none of which are here.
    "23505": ("UNIQUE_VIOLATION", "Filter such records in rows, or drop the constraint."),
    "23503": ("FOREIGN_KEY_VIOLATION", "First load the rows that these rows refer to, or drop the constraint."),
    "25P02": ("TARGET_FAILED", "Look the SQLSTATE up in Postgres's manual and remove its cause."),
    "28": (
        "CONNECT_REFUSED",
        "Postgres refused the login of an executor. A start reads the password again: check user, password and "
        "pg_hba.conf.",
    ),
    "55P03": (
        "LOCKED",
        "Another session has held a lock on the table, or on the ledger, for longer than lock_timeout: end it or wait.",
    ),
    "P0001": (
        "TARGET_FAILED",
        "A trigger or a function in the database raised this error: remove its cause, which Postgres's log has.",
    ),
}
# As ArrayText.java has them. What else there is has a text that Postgres reads.
_WRITTEN = frozenset({
    "bool", "int2", "int4", "int8", "float4", "float8", "numeric", "text", "bytea", "date", "timestamp", "timestamptz",
})  # fmt: skip


def refuse_other_types(columns: Sequence[EncodedColumn]) -> None:
    """:raises TypeMappingError: TYPE_UNSUPPORTED, for a column that the writer in Java cannot encode."""
    for column in columns:
        if column.postgres_type not in _WRITTEN:
            raise TypeMappingError.usual(
                "TYPE_UNSUPPORTED",
                f"Column {column.name!r} is {column.spark_type}, which is not written in real-time and continuous "
                "mode.",
                "Make it a string that the table's column reads: of a time by a cast, and for jsonb by to_json(column, "
                "options) with the options in page `real-time` of the documentation, or fractions of seconds are cut. "
                "There is none for an array: write it in micro-batches.",
            )


def sent(frame: DataFrame, positions: PositionColumns, columns: Sequence[EncodedColumn]) -> DataFrame:
    """The frame as the writer in Java takes it: topic, partition and offset, and then the columns of the table."""
    types = {field.name: field.dataType for field in frame.schema.fields}

    def as_sent(name: str) -> Column:
        column = frame[quoted(name)]
        if isinstance(types[name], TimestampType):
            # As numbers, because Spark would shift days before 1582 to another calendar.
            return f.unix_micros(column)
        if isinstance(types[name], (StringType, CharType, VarcharType)):
            # As bytes, because a string of Java's would have other characters where they are not UTF-8.
            return column.cast("binary")
        return f.unix_date(column) if isinstance(types[name], DateType) else column

    return frame.select(
        *(frame[quoted(name)].alias(f"position {number}") for number, name in enumerate(positions.names)),
        *(as_sent(column.name).alias(f"value {number}") for number, column in enumerate(columns)),
    )


def writer_settings(run: Run, jdbc: JdbcUrl, *, one_row_a_record: bool, tasks_report: bool) -> dict[str, object]:
    """
    How the writer in Java works, as it reads it.

    :param one_row_a_record: whether a record becomes at most one row, so that each row is whole as it comes.
    :param tasks_report: whether tasks end with each batch, and can say how far they have come.
    """
    return {
        "url": jdbc.url,
        "properties": jdbc.properties,
        "table": run.destination.table,
        "writer_id": run.writer_id,
        "run_id": run.run_id,
        "claim": CLAIM,
        "flush": run.flush,
        "look": LOOK,
        "dispute": DISPUTE,
        "one_row_a_record": one_row_a_record,
        "reports": tasks_report,
        "retry_seconds": float(run.settings.retry_timeout),
        "columns": [column.postgres_type for column in run.columns],
        "passing": [*TRANSIENT_SQLSTATES, *TRANSIENT_CLASSES, *_ALSO_PASSING],
        "session": jdbc.session,
        "remedies": {state: list(remedy) for state, remedy in _REMEDIES.items()},
    }


def java_writer(spark: SparkSession, run: Run, settings: Mapping[str, object], start: Offsets) -> Any:
    """
    The driver's object of the writer, which Spark sends to its tasks; with the run's :func:`writer_settings`.

    :param start: from where Spark reads each partition.
    """
    read_from = by_partition(start)
    known = [f"{t} {p} {position} {read_from[t, p]}" for _, t, p, position in kafka_positions(run.positions)]
    context: Any = spark.sparkContext._jsc
    return _jvm(spark).pgonce.RealTimeWriter(settings, context.sc().collectionAccumulator(), known)


def load_classes(spark: SparkSession) -> None:
    """
    Give the writer's jar to the session's driver and executors, and look for Postgres's JDBC driver there.

    :raises SparkError: NOT_INSTALLED.
    """
    if not _has_writer(spark) and WRITER_JAR.exists():
        spark.sql(f"ADD JAR '{WRITER_JAR.as_uri()}'")
    if not _has_writer(spark):
        raise SparkError.usual(
            "NOT_INSTALLED",
            f"Spark cannot load the class pgonce.RealTimeWriter, which is in {WRITER_JAR}.",
            "Name that file in spark.jars, or install pgonce from its wheel.",
        )
    java = _jvm(spark).java.lang
    try:
        java.Class.forName("org.postgresql.Driver", True, java.Thread.currentThread().getContextClassLoader())
    except Py4JError:
        raise SparkError.usual(
            "NOT_INSTALLED",
            "Postgres's JDBC driver is not on Spark's class path.",
            f"Add it to the application: spark.jars.packages={JDBC_DRIVER}, or spark.jars with its path.",
        ) from None


def _has_writer(spark: SparkSession) -> bool:
    return isinstance(_jvm(spark).pgonce.RealTimeWriter, JavaClass)


def _jvm(spark: SparkSession) -> Any:
    return spark.sparkContext._jvm
