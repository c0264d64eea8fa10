"""
Every query has the guarantee that docs/guarantees.md promises. Each row of its table is run.

``PGONCE_GUARANTEE_SEED`` chooses one query of each row; ``PGONCE_GUARANTEE=all`` runs them all.

Covers: sink.identity.from_running_query.
"""

from __future__ import annotations

import inspect
import os
import random
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.audit import left_behind, open_transactions, recorded, replays, wrong_ledger, wrong_rows
from support.fixtures.driver import wait_until
from support.guarantee_table import WAYS, Combination, rows_of
from support.inbox import Inbox, Row, events
from support.messages import POSITIONS, Messages
from support.patience import PATIENCE_SECONDS
from support.ways_in import BatchFunction

from pgonce import PostgresBatchWriter, recover_and_start, recover_checkpoint, transactional_batch
from pgonce.offsets_store.errors import ConfigurationError, RecoveryError

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

SEED = os.environ.get("PGONCE_GUARANTEE_SEED", str(secrets.randbelow(10**6)))
ALL = os.environ.get("PGONCE_GUARANTEE") == "all"
TABLE = rows_of((Path(__file__).parents[2] / "docs" / "guarantees.md").read_text())
PROMISED = {combination: row for row in TABLE for combination in row.combinations()}

TRIGGERS: dict[str, dict[str, Any]] = {
    "processing time": {"processingTime": "0 seconds"},
    "available now": {"availableNow": True},
    "once": {"once": True},
    "continuous": {"continuous": "200 milliseconds"},
    "real time": {"realTime": "5 seconds"},
}
ENDS_BY_ITSELF = {"available now", "once"}
MODES = {"stateful in update": "upsert", "stateful in complete": "complete"}
HAS_REAL_TIME = "realTime" in inspect.signature(DataStreamWriter.trigger).parameters


class FromKafka:
    """A topic of two partitions."""

    def __init__(self, messages: Messages) -> None:
        self._messages = messages
        self.feed = messages.send

    def frame(self, spark: SparkSession) -> DataFrame:
        """All rows, with their positions."""
        return self._messages.frame(spark, "earliest", positions=True)

    def rows(self, _: int) -> list[Row]:
        """What a table should hold that has so many rows."""
        return self._messages.rows


class FromFiles:
    """A folder of JSON files; its positions are made up."""

    def __init__(self, folder: Path) -> None:
        self._inbox = Inbox(folder)
        self.feed = self._inbox.add

    def frame(self, spark: SparkSession) -> DataFrame:
        """All rows, with positions."""
        return with_positions(events(spark, self._inbox.folder).selectExpr("id", "`Größe` AS text"))

    def rows(self, _: int) -> list[Row]:
        """What a table should hold that has so many rows."""
        return [(number, text) for number, _, text, *_ in self._inbox.rows]


class FromRate:
    """Ten rows a batch, without end; its positions are made up."""

    def __init__(self, stored: Callable[[], int]) -> None:
        self._stored = stored
        self._least = 0

    def feed(self, count: int) -> None:
        """Ask for so many more rows than there are, at least."""
        self._least = max(self._least, self._stored()) + count

    def frame(self, spark: SparkSession) -> DataFrame:
        """All rows, with positions."""
        source = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("startTimestamp", 1000)
        return with_positions(source.load().selectExpr("value AS id", "CAST(value AS STRING) AS text"))

    def rows(self, stored: int) -> list[Row]:
        """What a table should hold that has so many rows."""
        return [(number, str(number)) for number in range(max(stored, self._least))]


Source = FromKafka | FromFiles | FromRate


def number(observer: psycopg.Connection, query: str) -> int:
    """The one number that a query gives."""
    found = observer.execute(query.encode()).fetchone()
    assert found is not None
    return found[0]


def stored(observer: psycopg.Connection) -> int:
    """How many rows the table has; none while it is away."""
    if number(observer, "SELECT count(to_regclass('events'))") == 0:
        return 0
    return number(observer, "SELECT count(*) FROM events")


def with_positions(frame: DataFrame) -> DataFrame:
    """The frame with columns like Kafka's, which say nothing of where a row comes from."""
    return frame.select("*", f.lit("none").alias("topic"), f.lit(0).alias("partition"), f.col("id").alias("offset"))


class Subject:
    """One source, one checkpoint and one table, ``events``; what runs over them is a combination."""

    def __init__(self, spark: SparkSession, source: Source, url: str, observer: psycopg.Connection, checkpoint: str):
        self._spark, self._url, self._observer = spark, url, observer
        self.source, self.checkpoint = source, checkpoint

    def start(self, combination: Combination) -> StreamingQuery:
        """Start the query; Spark or `recover_and_start` may refuse at once."""
        writer = self._writer(combination).trigger(**TRIGGERS[combination.trigger])
        if recovers(combination):
            return recover_and_start(writer, self.checkpoint, self._url, quiet_seconds=0)
        return writer.option("checkpointLocation", self.checkpoint).start()

    def run(self, combination: Combination) -> None:
        """Run the query until all is stored that was fed, and stop it; its failure is raised."""
        for _ in range(10):
            self._run_once(combination)
            if self.is_stored():
                return
        pytest.fail(f"after ten starts {self.count()} rows are stored")

    def _run_once(self, combination: Combination) -> None:
        query = self.start(combination)
        try:
            if combination.trigger in ENDS_BY_ITSELF:
                assert query.awaitTermination(PATIENCE_SECONDS), "the query did not end"
                return
            for more in (6, 0):
                assert wait_until(lambda: not query.isActive or self.is_stored(), PATIENCE_SECONDS), "rows did not come"
                if query.exception() is not None:
                    raise query.exception()
                self.source.feed(more) if more else None
        finally:
            query.stop()
            # The commit of the batch that was stopped may still be under way, or about to begin in its worker.
            time.sleep(1 if combination.trigger == "processing time" else 0)
            assert wait_until(lambda: not open_transactions(self._observer), 30)

    def refusal(self, combination: Combination) -> str:
        """The words with which the query is refused."""
        with pytest.raises(Exception) as caught:
            self._run_once(combination)
        return str(caught.value)

    def _writer(self, combination: Combination) -> DataStreamWriter:
        by_position = combination.progress.endswith("positions")
        frame = self.source.frame(self._spark).select("id", "text", *(POSITIONS if by_position else ()))
        mode = MODES.get(combination.query, "append")
        if mode != "append":
            frame = frame.groupBy("id").agg(f.max("text").alias("text"))
        elif combination.query != "stateless":
            frame = frame.dropDuplicates(["id"])
        output_mode = {"upsert": "update"}.get(mode, mode)
        stream = self._sink(combination.way, frame, mode, by_position=by_position).outputMode(output_mode)
        if combination.progress == "off":
            return stream
        return stream.options(
            asyncProgressTrackingEnabled="true",
            # In a minute nothing but a run's first entry is written: whatever is published later, a crash forgets.
            asyncProgressTrackingCheckpointIntervalMs="0" if combination.progress == "interval 0" else "60000",
            _asyncProgressTrackingOverrideSinkSupportCheck="true",
        )

    def _sink(self, way: str, frame: DataFrame, mode: str, *, by_position: bool) -> DataStreamWriter:
        keys = ["id"] if mode == "upsert" else []
        if way != WAYS[0]:
            make = self._batch_writer if way == WAYS[1] else self._function
            return frame.writeStream.foreachBatch(make(mode, keys, POSITIONS if by_position else ()))
        options = {"url": self._url, "table": "events"}
        if by_position:
            options |= {"positionColumns": ",".join(POSITIONS), "writePositions": "false"}
        if keys:
            options |= {"mode": mode, "keys": ",".join(keys)}
        return frame.writeStream.format("pgonce").options(**options)

    def _batch_writer(self, mode: Any, keys: list[str], positions: tuple[str, ...]) -> BatchFunction:
        settings: dict[str, Any] = {"position_columns": positions, "write_positions": False} if positions else {}
        return PostgresBatchWriter(self._url, table="events", mode=mode, keys=keys, **settings)

    def _function(self, mode: str, keys: list[str], positions: tuple[str, ...]) -> BatchFunction:
        @transactional_batch(self._url, name="events", position_columns=positions)
        def write(batch: DataFrame, tx: Any) -> None:
            rows = batch.select("id", "text")
            if mode == "upsert":
                tx.upsert(rows, "events", keys)
            else:
                (tx.append if mode == "append" else tx.replace)(rows, "events")

        return write

    def count(self) -> int:
        """How many rows the table has; none while it is away."""
        return stored(self._observer)

    def is_stored(self) -> bool:
        """Whether the table has as many rows as were fed, or more."""
        return self.count() >= len(self.source.rows(0))

    def state(self) -> dict[str, Any]:
        """All rows of the table, all that the ledger has recorded, and the batches that Spark holds to be done."""
        has_ledger = number(self._observer, "SELECT count(to_regclass('pgonce.batches'))")
        batches = self._observer.execute("SELECT * FROM pgonce.batches ORDER BY 1, 2").fetchall() if has_ledger else []
        rows = self._observer.execute("SELECT * FROM events ORDER BY 1").fetchall()
        return {"rows": rows, "batches": batches, "commits": self._entries("commits")}

    def _entries(self, log: str) -> set[int]:
        return {int(file.name) for file in Path(self.checkpoint, log).glob("[0-9]*")}

    def what_is_wrong(self, combination: Combination) -> list[str]:
        """What is lost or doubled, and where the ledger is wrong, in sentences."""
        wrong = wrong_rows(self._observer, "events", self.source.rows(self.count())) + left_behind(self._observer)
        rows = sum(batch.rows for batch in recorded(self._observer, self.checkpoint))
        if combination.query != "stateful in complete" and rows != self.count():
            wrong.append(f"the ledger counts {rows} rows, the table has {self.count()}")
        # A query that was stopped may lack its last entries of commits/, and with an interval of offsets/ too.
        if combination.trigger in ENDS_BY_ITSELF:
            wrong += wrong_ledger(self._observer, self.checkpoint)
        return wrong

    def crash_before_commit(self, combination: Combination, url: str) -> None:
        """Leave the checkpoint as a crash does that came while a batch was written."""
        with renamed(url, "events"):
            self.source.feed(5)
            assert "[COLUMN_UNKNOWN]" in self.refusal(combination)

    def crash_after_commit(self) -> None:
        """Leave the checkpoint as a crash does that came between COMMIT and ``commits/N``."""
        last = self._last_batch()
        for name in (str(last), f".{last}.crc"):
            Path(self.checkpoint, "commits", name).unlink(missing_ok=True)

    def crash_with_an_entry_due(self, plain: Combination, url: str) -> None:
        """
        Leave the checkpoint as a crash does that came after an entry was written, but before its batch was.

        Of the batches before, which are published, Spark has written down the first one only.
        """
        self.run(plain)
        self.source.feed(6)
        self.run(plain)
        self.crash_before_commit(plain, url)
        for batch_id in sorted(self._entries("offsets"))[1:-1]:
            self._forget(batch_id)
        assert self._entries("offsets") == {0, self._last_batch() + 1}

    def take_the_unpublished_entry_away(self) -> None:
        """What the page says to do by hand."""
        newest = max(self._entries("offsets"))
        assert newest not in self._entries("commits")
        self._forget(newest)

    def _forget(self, batch_id: int) -> None:
        for log in ("offsets", "commits"):
            for name in (str(batch_id), f".{batch_id}.crc"):
                Path(self.checkpoint, log, name).unlink(missing_ok=True)

    def runs_again(self) -> list[int]:
        """The published batch, if there is one, that Spark must run again over its range."""
        last = self._last_batch()
        return [last] if last == max(self._entries("offsets")) and last not in self._entries("commits") else []

    def has_forgotten(self) -> bool:
        """Whether batches were published that Spark has never written down."""
        return max(self._entries("offsets")) < self._last_batch()

    def _last_batch(self) -> int:
        return recorded(self._observer, self.checkpoint)[-1].batch_id

    def replays(self) -> list[int]:
        """The batches that were skipped as proven replays."""
        return replays(self._observer, self.checkpoint)


@contextmanager
def renamed(url: str, table: str) -> Iterator[None]:
    """Let a column be away; a table that is away is refused before the query is started."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN text TO away")
        yield
        connection.execute(f"ALTER TABLE {table} RENAME COLUMN away TO text")


@pytest.fixture
def make_subject(spark, kafka, topic, url, observer, tmp_path) -> Callable[[Combination], Subject]:
    """A subject for a combination: ``make_subject(combination)``, with eleven rows in its source."""

    def make(combination: Combination) -> Subject:
        with psycopg.connect(url) as connection:
            key = "PRIMARY KEY" if combination.query == "stateful in update" else ""
            connection.execute(f"CREATE TABLE events (id bigint {key}, text text)")
        sources: dict[str, Callable[[], Source]] = {
            "Kafka": lambda: FromKafka(Messages(kafka.bootstrap_servers, topic(partitions=2))),
            "rate-micro-batch": lambda: FromRate(lambda: stored(observer)),
            "files": lambda: FromFiles(tmp_path / "inbox"),
        }
        subject = Subject(spark, sources[combination.source](), url, observer, str(tmp_path / "checkpoint"))
        subject.source.feed(11)
        return subject

    return make


def cases(guarantee: str) -> list[Any]:
    """The rows that promise this, each with one combination; or all combinations, each with its row."""
    rows = [row for row in TABLE if row.guarantee == guarantee]
    if ALL:
        return [pytest.param(c, id=f"{row.number}: {c}") for row in rows for c in row.combinations()]
    # Ids that the seed does not change: processes that share the tests must find the same ones.
    return [
        pytest.param(
            random.Random(f"{SEED} {row.number}").choice(list(row.combinations())),
            id=" ".join(filter(None, [f"row {row.number}", row.by, re.sub(r"\W+", " ", row.says)])),
        )
        for row in rows
    ]


def dice_of(combination: Combination) -> random.Random:
    """Say what is run and how to run it again, and decide the rest by the same seed."""
    print(f"PGONCE_GUARANTEE_SEED={SEED}: {combination}")
    return random.Random(f"{SEED} {combination}")


def plainly(combination: Combination) -> Combination:
    """The same query, run in micro-batches, and with every batch written down before the next."""
    return combination._replace(trigger="available now", progress="off")


def recovers(combination: Combination) -> bool:
    """Whether the checkpoint is repaired before a start."""
    return combination.progress.endswith("`recover_and_start`")


@pytest.mark.parametrize("combination", cases("exactly-once"))
def test_a_promised_query_that_crashes_is_exactly_once(combination, make_subject, url):
    """Crashed while a batch was written, or before Spark noted it, the table is its source, and goes on."""
    dice, subject = dice_of(combination), make_subject(combination)
    crash = dice.choice(["after COMMIT", "before COMMIT", *(["an entry was due"] if recovers(combination) else [])])
    print(f"crash: {crash}")
    if crash == "an entry was due":
        subject.crash_with_an_entry_due(plainly(combination), url)
    else:
        subject.run(combination)
        assert subject.has_forgotten() == combination.progress.startswith("interval above 0")
    if crash == "after COMMIT":
        subject.crash_after_commit()
    run_again = subject.runs_again()
    if crash == "before COMMIT":
        subject.crash_before_commit(combination, url)
    subject.source.feed(7)
    subject.run(combination)
    assert subject.what_is_wrong(combination) == []
    if combination.progress in {"off", "interval 0"}:
        assert subject.replays() == run_again


@pytest.mark.parametrize("combination", cases("refused"))
def test_a_combination_without_a_promise_is_refused_before_a_row_moves(combination, make_subject):
    """Who the page says refuses in the words of the page, before a row moves; a plain start goes on with all rows."""
    dice, subject, row = dice_of(combination), make_subject(combination), PROMISED[combination]
    plain = plainly(combination)
    is_plain = PROMISED[plain].guarantee == "exactly-once"
    if is_plain and dice.random() < 0.5:
        subject.run(plain)
        subject.source.feed(6)
    before = subject.state()
    if combination.trigger == "real time" and not HAS_REAL_TIME:
        with pytest.raises(TypeError, match="realTime"):
            subject.start(combination)
    else:
        words = subject.refusal(combination)
        assert (f"[{row.says}]" if row.by == "pgonce" else row.says) in words
        assert ("Help: " in words) == (row.by == "pgonce")
    assert subject.state() == before
    if is_plain:
        subject.source.feed(7)
        subject.run(plain)
        assert subject.what_is_wrong(plain) == []


@pytest.mark.parametrize("combination", cases("refused after a crash"))
def test_refused_after_a_crash(combination, make_subject, url):
    """Neither the crash nor the start after it loses or doubles a row; repaired as the page says, the query goes on."""
    dice_of(combination)
    subject, row = make_subject(combination), PROMISED[combination]
    if recovers(combination):
        subject.crash_with_an_entry_due(plainly(combination), url)
    else:
        subject.run(combination)
        assert subject.what_is_wrong(combination) == []
        assert subject.has_forgotten()
    before = subject.state()
    subject.source.feed(7)
    assert f"[{row.says}]" in subject.refusal(combination)
    # The start may have run the entry's batch again, which Spark now holds to be done.
    assert subject.state() | {"commits": before["commits"]} == before
    if combination.source == "files":
        with pytest.raises(RecoveryError, match="RECOVERY_UNPROVEN"):
            recover_checkpoint(subject.checkpoint, url, quiet_seconds=0)
        subject.take_the_unpublished_entry_away()
    recover_checkpoint(subject.checkpoint, url, quiet_seconds=0)
    subject.run(combination)
    assert subject.what_is_wrong(combination) == []


def test_refused_after_a_crash_with_an_entry_due(make_subject, url):
    """Where Spark wrote down the interrupted batch, and not those before, the next start is refused, and recovered."""
    rows = [row for row in TABLE if row.says == "CHANGED"]
    combinations = [c for row in rows for c in row.combinations() if c.source != "files"]
    combination = random.Random(SEED).choice(combinations)
    dice_of(combination)
    subject = make_subject(combination)
    subject.crash_with_an_entry_due(plainly(combination), url)
    before = subject.state()
    subject.source.feed(7)
    assert "[DISJOINT]" in subject.refusal(combination)
    assert subject.state() == before
    recover_checkpoint(subject.checkpoint, url, quiet_seconds=0)
    subject.run(combination)
    assert subject.what_is_wrong(combination) == []


def test_positions_of_an_aggregate():
    """The one combination of which the page has no row: a writer that nobody can make."""
    assert not {c for c in PROMISED if c.way == WAYS[1] and "positions" in c.progress and "complete" in c.query}
    with pytest.raises(ConfigurationError, match="CLASHING_OPTIONS"):
        PostgresBatchWriter(table="events", mode="complete", position_columns=POSITIONS)
