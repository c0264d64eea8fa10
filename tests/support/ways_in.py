"""
The ways in, one description each, so that one suite runs over all of them.

Runs in: pytest's own driver, and in the drivers that the chaos tests kill. Invariant: a way in knows how a query is
written and nothing of what is tested; every setting has the one name that `PostgresBatchWriter` gives it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, Literal

from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pgonce import PostgresBatchWriter, transactional_batch

BatchFunction = Callable[[DataFrame, int], None]


@dataclass(frozen=True)
class Sink:
    """Where a query writes; ``settings`` are named as arguments of `PostgresBatchWriter`."""

    url: str
    table: str
    checkpoint: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DataSource:
    """``format("pgonce")``; with ``inline_bytes`` 0 every row is staged, or received."""

    name: str
    inline_bytes: int | None = None
    receiver: str | None = None
    upserts: bool = False
    routes: bool = False
    in_foreach_batch = False

    def append(self, frame: DataFrame, sink: Sink) -> DataStreamWriter:
        """Add the frame's rows to the table."""
        if self.upserts:
            return self._write(_as_changes(frame), replace(sink, settings={**sink.settings, **_CHANGES}))
        return self._write(frame, sink)

    def totals(self, frame: DataFrame, sink: Sink, key: str) -> DataStreamWriter:
        """Keep the table equal to an aggregate."""
        return self._write(frame, sink).outputMode("complete")

    def _write(self, frame: DataFrame, sink: Sink) -> DataStreamWriter:
        options = {"url": sink.url, "checkpointLocation": sink.checkpoint}
        if self.routes:
            frame = frame.withColumn("goes_to", f.lit("rows"))
            options |= {
                "route": "goes_to",
                "tables": json.dumps({"rows": {"table": sink.table}, "others": {"createTable": True}}),
            }
        else:
            options["table"] = sink.table
        if self.inline_bytes is not None:
            options["inlineBytes"] = str(self.inline_bytes)
        if self.receiver is not None:
            options["receiver"] = self.receiver
        for name, value in sink.settings.items():
            options[_camel_case(name)] = str(value).lower() if isinstance(value, bool) else str(value)
        return frame.writeStream.format("pgonce").options(**options)


@dataclass(frozen=True)
class InForeachBatch:
    """What is passed to ``foreachBatch``: ``appending`` and ``keeping`` make the function of either kind of query."""

    name: str
    appending: Callable[[Sink], BatchFunction]
    keeping: Callable[[Sink, str], BatchFunction]
    upserts: bool = False
    in_foreach_batch = True

    def append(self, frame: DataFrame, sink: Sink) -> DataStreamWriter:
        """Add the frame's rows to the table."""
        return _foreach_batch(frame, sink, self.appending(sink))

    def totals(self, frame: DataFrame, sink: Sink, key: str) -> DataStreamWriter:
        """Keep the table equal to an aggregate, whose rows ``key`` tells apart."""
        output_mode = "update" if self.upserts else "complete"
        return _foreach_batch(frame, sink, self.keeping(sink, key)).outputMode(output_mode)


WayIn = DataSource | InForeachBatch

# Rows of a change feed that only writes, so that the table holds its source.
_CHANGES = {"mode": "apply", "delete_when": "is_deleted", "order_by": "id", "only_newer": True}


def _as_changes(frame: DataFrame) -> DataFrame:
    return frame.withColumn("is_deleted", f.lit(False))


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _foreach_batch(frame: DataFrame, sink: Sink, function: BatchFunction) -> DataStreamWriter:
    return frame.writeStream.foreachBatch(function).option("checkpointLocation", sink.checkpoint)


def _told(sink: Sink) -> dict[str, Any]:
    """Its settings, and what a writer must be told over Spark Connect."""
    return {"checkpoint_location": sink.checkpoint, **sink.settings}


def _writer(mode: Literal["append", "complete"]) -> Callable[..., BatchFunction]:
    return lambda sink, *_: PostgresBatchWriter(sink.url, table=sink.table, mode=mode, **_told(sink))


def _upserting_writer(sink: Sink, key: str = "id") -> BatchFunction:
    return PostgresBatchWriter(sink.url, table=sink.table, mode="upsert", keys=[key], **_told(sink))


def _diverting_writer(sink: Sink) -> BatchFunction:
    writer = PostgresBatchWriter(
        sink.url, table=sink.table, dead_letters=True, max_dead_letters=1_000_000, **_told(sink)
    )
    return lambda batch, batch_id: writer(_with_bad_rows(batch), batch_id)


def _with_bad_rows(frame: DataFrame) -> DataFrame:
    """The rows, and with every third one a copy without a key, which the table refuses."""
    copies = f.explode(f.array(f.lit(False), f.lit(True))).alias("is_bad")
    twice = frame.select("*", copies).where("NOT is_bad OR id % 3 = 0")
    return twice.withColumn("id", f.when(~f.col("is_bad"), f.col("id"))).drop("is_bad")


def _appending_function(sink: Sink) -> BatchFunction:
    return _transactional(sink, lambda batch, tx: tx.append(batch, sink.table))


def _told_function(sink: Sink) -> BatchFunction:
    """Settings are about its table."""
    write = transactional_batch(sink.url, name=sink.table, checkpoint_location=sink.checkpoint)
    return write(lambda batch, tx: tx.append(batch, sink.table, **sink.settings))


def _applying_function(sink: Sink) -> BatchFunction:
    changes = {name: value for name, value in _CHANGES.items() if name != "mode"}
    return _transactional(sink, lambda batch, tx: tx.apply(_as_changes(batch), sink.table, **changes))


def _replacing_function(sink: Sink, _: str) -> BatchFunction:
    return _transactional(sink, lambda batch, tx: tx.replace(batch, sink.table))


def _transactional(sink: Sink, work: Callable[..., Any]) -> BatchFunction:
    settings = {name: value for name, value in _told(sink).items() if name != "sink_name"}
    return transactional_batch(sink.url, name=sink.settings.get("sink_name", sink.table), **settings)(work)


def _routing_function(mode: str) -> Callable[..., BatchFunction]:
    def work(table: str) -> Callable[..., Any]:
        routed = {"rows": {"table": table}}
        return lambda batch, tx: tx.route(batch.withColumn("goes_to", f.lit("rows")), "goes_to", routed, mode=mode)

    return lambda sink, *_: _transactional(sink, work(sink.table))


def of_this_spark(ways: Iterable[WayIn]) -> tuple[WayIn, ...]:
    """The ways that this PySpark has: before 4.0, no data source could be written in Python."""
    has_data_sources = find_spec("pyspark.sql.datasource") is not None
    return tuple(way for way in ways if way.in_foreach_batch or has_data_sources)


WAYS: tuple[WayIn, ...] = (
    DataSource("inline"),
    DataSource("staged", inline_bytes=0, receiver="off"),
    DataSource("received", inline_bytes=0, receiver="auto"),
    InForeachBatch("writer_append", _writer("append"), _writer("complete")),
    InForeachBatch("writer_upsert", _upserting_writer, _upserting_writer, upserts=True),
    InForeachBatch("function", _appending_function, _replacing_function),
)
APPLYING_WAYS: tuple[WayIn, ...] = (
    DataSource("applied", inline_bytes=0, receiver="off", upserts=True),
    InForeachBatch("function_apply", _applying_function, _replacing_function, upserts=True),
)
# The table also has a key here.
DIVERTING_WAYS: tuple[WayIn, ...] = (
    InForeachBatch("writer_diverting", _diverting_writer, _upserting_writer, upserts=True),
)
ROUTED_WAYS: tuple[WayIn, ...] = (
    DataSource("routed", routes=True),
    InForeachBatch("function_route", _routing_function("append"), _routing_function("complete")),
)
# By these, settings say how rows go into the table; a function is told of each table by the user.
TABLE_WAYS: tuple[WayIn, ...] = (
    *(way for way in WAYS if way.name != "function"),
    InForeachBatch("function", _told_function, lambda sink, _: _told_function(sink)),
)
