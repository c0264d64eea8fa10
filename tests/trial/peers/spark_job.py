"""
A driver with a query for each lane of Spark's ways, kept running as a supervisor would keep it.

Runs in: a process of its own, started by the trial with a JSON object (:class:`Job`). Invariant: it knows of no fault.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import psycopg
from loads import COLUMNS, STRUCT
from psycopg import sql
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming import StreamingQuery
from support.spark_session import started_session
from support.supervised_query import SupervisedJob, SupervisedQuery

import pgonce

_TRIGGER = "1 second"
_PAUSE_SECONDS = 0.2
_TRIES = 3
_NAMES = [column.split()[0] for column in COLUMNS.split(", ")]


@dataclass(frozen=True)
class Job(SupervisedJob):
    """What to run: each lane's way, and its ``url`` and ``jdbc_url``; ``spark`` are Spark's settings."""

    servers: str
    topic: str
    lanes: dict[str, tuple[str, str, str]]
    spark: dict[str, str]


@dataclass(frozen=True)
class Place:
    """Where a lane reads and writes."""

    session: SparkSession
    kafka: dict[str, str]
    url: str
    jdbc_url: str
    table: str
    checkpoint: str

    def rows(self) -> DataFrame:
        """The six columns, read by ``from_json``."""
        records = self.session.readStream.format("kafka").options(**self.kafka).load()
        return records.select(f.from_json(f.col("value").cast("string"), STRUCT).alias("row")).select("row.*")

    def for_each_batch(self, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Start a query that calls this for each batch."""
        writer = self.rows().writeStream.foreachBatch(write).trigger(processingTime=_TRIGGER)
        return writer.start(checkpointLocation=self.checkpoint)

    def write_by_jdbc(self, frame: DataFrame, table: str, **how: str) -> None:
        """Spark's own writer."""
        properties = {"driver": "org.postgresql.Driver", "reWriteBatchedInserts": "true", **how}
        frame.write.jdbc(self.jdbc_url, table, mode="overwrite" if how else "append", properties=properties)


def _jdbc_append(place: Place) -> StreamingQuery:
    return place.for_each_batch(lambda frame, _: place.write_by_jdbc(frame, place.table))


def _jdbc_upsert(place: Place) -> StreamingQuery:
    columns = sql.SQL(", ").join(map(sql.Identifier, _NAMES))
    merge = sql.SQL(
        "INSERT INTO {table} ({columns}) SELECT {columns} FROM {beside} ON CONFLICT (customer) DO UPDATE SET {set}"
    ).format(
        table=sql.Identifier(place.table),
        beside=sql.Identifier(f"{place.table}_beside"),
        columns=columns,
        set=sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in _NAMES),
    )

    def write(frame: DataFrame, _: int) -> None:
        newest = frame.groupBy("customer").agg(f.max_by(f.struct(*_NAMES), "id").alias("row")).select("row.*")
        place.write_by_jdbc(newest, f"{place.table}_beside", truncate="true")
        with psycopg.connect(place.url) as connection:
            connection.execute(merge)

    return place.for_each_batch(write)


def _by_batch_id(place: Place) -> StreamingQuery:
    def write(frame: DataFrame, batch_id: int) -> None:
        rows = frame.collect()
        with psycopg.connect(place.url) as connection:
            app = [place.table]
            connection.execute("INSERT INTO done VALUES (%s, -1) ON CONFLICT DO NOTHING", app)
            version = connection.execute("SELECT version FROM done WHERE app = %s FOR UPDATE", app).fetchone()
            if version and batch_id <= version[0]:
                return
            into = sql.SQL("COPY {} FROM STDIN").format(sql.Identifier(place.table))
            with connection.cursor().copy(into) as copy:
                for row in rows:
                    copy.write_row((*row[:-1], f"{row.at} UTC"))
            connection.execute("UPDATE done SET version = %s WHERE app = %s", [batch_id, *app])

    return place.for_each_batch(write)


def _pgonce_writer(place: Place) -> StreamingQuery:
    return place.for_each_batch(pgonce.PostgresBatchWriter(place.url, table=place.table))


def _pgonce_format(place: Place) -> StreamingQuery:
    writer = place.rows().writeStream.format("pgonce").options(url=place.url, table=place.table)
    return writer.trigger(processingTime=_TRIGGER).start(checkpointLocation=place.checkpoint)


def _pgonce_topic(place: Place) -> StreamingQuery:
    return pgonce.topic_to_table(
        place.session, kafka=place.kafka, url=place.url, table=place.table, decode="json", mode="upsert",
        keys=["customer"], checkpoint_location=place.checkpoint, trigger={"processingTime": _TRIGGER},
    )  # fmt: skip


def _pgonce_real_time(place: Place) -> StreamingQuery:
    def rows(records: DataFrame) -> DataFrame:
        row = f.from_json(f.col("value").cast("string"), STRUCT).alias("row")
        return records.select("topic", "partition", "offset", row).select("topic", "partition", "offset", "row.*")

    return pgonce.start_real_time(
        place.session, kafka=place.kafka, rows=rows, url=place.url, table=place.table,
        checkpoint_location=place.checkpoint, real_time="5 seconds", write_positions=False,
    )  # fmt: skip


_STARTS = {
    "jdbc_append": _jdbc_append,
    "jdbc_upsert": _jdbc_upsert,
    "by_batch_id": _by_batch_id,
    "pgonce_writer": _pgonce_writer,
    "pgonce_format": _pgonce_format,
    "pgonce_topic": _pgonce_topic,
    "pgonce_real_time": _pgonce_real_time,
}


def _supervised(session: SparkSession, job: Job, lane: str) -> SupervisedQuery:
    way, url, jdbc_url = job.lanes[lane]
    kafka = {"kafka.bootstrap.servers": job.servers, "subscribe": job.topic, "startingOffsets": "earliest"}
    place = Place(session, kafka, url, jdbc_url, lane, f"{job.directory}/checkpoints/{lane}")
    return SupervisedQuery(lane, lambda: _STARTS[way](place), job.diary)


def _finish(queries: Sequence[SupervisedQuery]) -> None:
    """Run each over all that is there, in some tries, and write down whether it came to the end."""
    left = list(queries)
    with ThreadPoolExecutor(len(left)) as threads:
        for _ in range(_TRIES):
            for query in left:
                query.revive()
                query.look_after()
            done = threads.map(_is_done, left)
            left = [query for query, is_done in zip(left, done, strict=True) if not is_done]
    for query in left:
        if query.query is not None:
            query.note_end()
        query.note("stopped", "")


def _is_done(query: SupervisedQuery) -> bool:
    with suppress(StreamingQueryException, AttributeError):
        query.query.processAllAvailable()  # type: ignore[union-attr]
        query.note("done", "")
        return True
    return False


def main(job: Job) -> None:
    """
    Look after all queries until the sign ``finish`` is there, then bring each to its end.

    In real time they have none, and go on until they are killed.
    """
    session = started_session("pgonce-trial", job.spark)
    queries = [_supervised(session, job, lane) for lane in job.lanes]
    in_real_time = any(way == "pgonce_real_time" for way, *_ in job.lanes.values())
    while not job.sign("finish").exists() or in_real_time:
        if job.sign("revive").exists():
            job.sign("revive").unlink()
            for query in queries:
                query.revive()
        for query in queries:
            query.look_after()
        time.sleep(_PAUSE_SECONDS)
    _finish(queries)


if __name__ == "__main__":
    main(Job(**json.loads(sys.argv[1])))
