"""What Spark tells the listener, what the ledger keeps of it, and what happens when Postgres is away."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path

import psycopg
import pytest
from support.fixtures.driver import wait_until, with_tests_on_path
from support.fixtures.spark import spark_settings
from support.patience import PATIENCE_SECONDS
from support.progress_events import Event

from pgonce import PostgresBatchWriter
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.progress.listener import OffsetsListener, code_of_end, watch
from pgonce.offsets_store.status.store import OffsetsStore

pytestmark = pytest.mark.spark

ENDED_JOB = Path(__file__).parents[2] / "support" / "ended_job.py"
AWAY = "postgresql://somebody:s3cret@127.0.0.1:1/nowhere"


@pytest.fixture
def listen(spark):
    """Add an OffsetsListener to the session; each is removed and closed in the end."""
    listeners = []

    def add(url):
        listener = OffsetsListener(url)
        spark.streams.addListener(listener)
        listeners.append(listener)
        return listener

    yield add
    for listener in listeners:
        spark.streams.removeListener(listener)
        listener.close(5)


@pytest.fixture
def inbox(tmp_path):
    """Add files of one row, one a call; a stream takes one a batch."""
    folder = tmp_path / "inbox"
    folder.mkdir()

    def add(count):
        for _ in range(count):
            number = len(list(folder.iterdir()))
            (folder / f"{number:03}.json").write_text(f'{{"id":{number}}}')
        return folder

    return add


def files(spark, folder):
    """Stream a folder, one file a batch."""
    return spark.readStream.schema("id int").option("maxFilesPerTrigger", 1).json(str(folder))


def run(writer, checkpoint, name="orders"):
    """Run a query over all there is."""
    started = writer.option("checkpointLocation", checkpoint).queryName(name).trigger(availableNow=True).start()
    assert started.awaitTermination(PATIENCE_SECONDS)
    return started


def flush(listener, count):
    """Wait until Spark has told so many events, and all that is queued is stored or dropped."""
    assert wait_until(lambda: heard_of(listener) >= count, 30), f"heard {heard_of(listener)} of {count} events"


def heard_of(listener):
    """How many events the listener is done with."""
    return listener.dropped + listener.stored


@pytest.fixture
def orders(url, admin):
    """A table `orders` in the test's database, and what to pass to foreachBatch."""
    admin.execute("CREATE TABLE orders (id int)")
    return PostgresBatchWriter(url, table="orders")


def progress_of(observer, *columns):
    """The stored progress rows in order."""
    return observer.execute(
        f"SELECT {', '.join(columns)} FROM pgonce.progress ORDER BY progress_at, batch_id"
    ).fetchall()


class TestAgreement:
    def test_every_batch_is_stored(self, spark, url, observer, listen, orders, inbox, checkpoint):
        """Each event is a row that agrees with the ledger, with ids, name, rows, offsets and durations."""
        listener = listen(url)
        query = run(files(spark, inbox(3)).writeStream.foreachBatch(orders), checkpoint)
        flush(listener, 3)
        columns = ["query_id", "run_id", "query_name", "batch_id", "num_input_rows", "end_offsets", "disagreement"]
        assert progress_of(observer, *columns) == [
            (str(query.id), str(query.runId), "orders", number, 1, {"0": {"logOffset": number}}, None)
            for number in range(3)
        ]
        starts = [start for (start,) in progress_of(observer, "start_offsets")]
        assert starts == [{"0": None}, {"0": {"logOffset": 0}}, {"0": {"logOffset": 1}}]
        ((durations,), *_) = progress_of(observer, "durations_ms")
        assert durations["addBatch"] > 0
        assert listener.dropped == 0


class TestDisagreement:
    def test_other_offsets_are_told_and_kept(self, spark, url, observer, listen, orders, inbox, checkpoint, caplog):
        """Offsets in the ledger that are not Spark's are a warning in the log and a text in the row."""

        def tampering(frame, batch_id):
            orders(frame, batch_id)
            with psycopg.connect(url) as connection:
                connection.execute("""UPDATE pgonce.batches SET end_offsets = '{"0": {"logOffset": 9}}'""")

        listener = listen(url)
        run(files(spark, inbox(1)).writeStream.foreachBatch(tampering), checkpoint)
        flush(listener, 1)
        # The warning comes after the event is counted; the thread that logs it has ended when this returns.
        assert listener.close(30)
        ((text,),) = progress_of(observer, "disagreement")
        assert "'logOffset': 0" in text
        assert "'logOffset': 9" in text
        assert "public.orders" in text
        assert [record.levelno for record in caplog.records if text in record.getMessage()] == [logging.WARNING]
        assert OffsetsStore(url).latest("orders").disagreements == 1


class TestFilling:
    def test_offsets_are_open_at_the_commit_and_filled_later(self, spark, url, admin, listen, inbox, checkpoint):
        """With offsetsFrom=listener the ledger's offsets are open at the commit, and filled by the event."""
        admin.execute("CREATE TABLE orders (id int)")
        listener = listen(url)
        writer = files(spark, inbox(2)).writeStream.format("pgonce").option("url", url).option("table", "orders")
        run(writer.option("offsetsFrom", "listener").option("checkpointLocation", checkpoint), checkpoint)
        flush(listener, 2)
        rows = admin.execute("SELECT start_offsets, end_offsets FROM pgonce.batches ORDER BY batch_id")
        assert rows.fetchall() == [
            ({"0": None}, {"0": {"logOffset": 0}}),
            ({"0": {"logOffset": 0}}, {"0": {"logOffset": 1}}),
        ]
        (row,) = OffsetsStore(url).queries()
        assert (row.end_offsets, row.guarantee) == ({"0": {"logOffset": 1}}, "ids")


class TestTrouble:
    def test_a_stream_ends_well_and_warns_once_while_postgres_is_away(self, spark, listen, inbox, checkpoint, caplog):
        """The stream runs to its end, every event is counted, one warning tells it, and no password does."""
        listener = listen(AWAY)
        query = run(files(spark, inbox(3)).writeStream.format("noop"), checkpoint)
        flush(listener, 3)
        assert query.exception() is None
        assert listener.dropped == 3
        warnings = [record.getMessage() for record in caplog.records if record.name == "pgonce"]
        assert len(warnings) == 1
        assert "CONNECT_FAILED" in warnings[0]
        assert "s3cret" not in caplog.text

    def test_events_are_stored_again_when_postgres_is_back(self, proxy):
        """Events of an outage are dropped and counted; when Postgres is back, they are stored again."""
        listener = OffsetsListener(proxy.url)
        listener.onQueryProgress(Event(0))
        flush(listener, 1)
        proxy.stop()
        listener.onQueryProgress(Event(1))
        flush(listener, 2)
        proxy.start()
        listener.onQueryProgress(Event(2))
        assert listener.close(30)
        assert (listener.stored, listener.dropped) == (2, 1)

    def test_a_full_queue_drops_and_returns(self, url, monkeypatch):
        """With Postgres hanging and the queue full, a callback returns at once and counts."""
        monkeypatch.setattr("pgonce.offsets_store.progress.listener.QUEUED_EVENTS", 2)
        listener = OffsetsListener(url)
        with psycopg.connect(url) as blocking:
            blocking.execute("LOCK TABLE pgonce.progress IN ACCESS EXCLUSIVE MODE")
            started = time.monotonic()
            for batch_id in range(50):
                listener.onQueryProgress(Event(batch_id))
            assert time.monotonic() - started < 10
            assert listener.dropped >= 47
        listener.close(10)
        assert heard_of(listener) == 50

    def test_close_stores_what_is_queued(self, url, observer):
        """Closing flushes the queue; what comes later is dropped and counted."""
        listener = OffsetsListener(url)
        for batch_id in range(20):
            listener.onQueryProgress(Event(batch_id))
        assert listener.close(30)
        assert observer.execute("SELECT count(*) FROM pgonce.progress").fetchone() == (20,)
        listener.onQueryProgress(Event(20))
        assert listener.dropped == 1

    def test_close_does_not_wait_for_ever(self, url):
        """What cannot be stored within the time given is counted as dropped."""
        listener = OffsetsListener(url)
        with psycopg.connect(url) as blocking:
            blocking.execute("LOCK TABLE pgonce.progress IN ACCESS EXCLUSIVE MODE")
            for batch_id in range(5):
                listener.onQueryProgress(Event(batch_id))
            assert not listener.close(0.5)
        assert listener.dropped >= 4

    def test_an_event_of_an_unknown_form(self, url):
        """An event that cannot be read is counted; the next one is stored."""
        listener = OffsetsListener(url)
        broken = Event(0)
        del broken.progress.sources
        listener.onQueryProgress(broken)
        listener.onQueryProgress(Event(1))
        assert listener.close(30)
        assert (listener.dropped, listener.stored) == (1, 1)


def states(url):
    """What the view says, by query name."""
    return {state.query_name: (state.state, state.failure_code) for state in OffsetsStore(url).states()}


class TestLife:
    def test_from_start_to_end(self, spark, url, listen, orders, inbox, checkpoint):
        """A query that is heard is idle once it has read all, and stopped when it was stopped."""
        listen(url)
        spark.conf.set("spark.sql.streaming.noDataProgressEventInterval", "100")
        try:
            writer = files(spark, inbox(1)).writeStream.foreachBatch(orders).option("checkpointLocation", checkpoint)
            query = writer.queryName("orders").trigger(processingTime="100 milliseconds").start()
        finally:
            spark.conf.unset("spark.sql.streaming.noDataProgressEventInterval")
        assert wait_until(lambda: "orders" in states(url), PATIENCE_SECONDS)
        assert wait_until(lambda: states(url)["orders"][0] == "idle", PATIENCE_SECONDS)
        query.stop()
        assert wait_until(lambda: states(url)["orders"] == ("stopped", None), PATIENCE_SECONDS)

    def test_what_ended_a_query(self, spark, url, observer, listen, orders, inbox, checkpoint):
        """An error that is not ours is kept with Spark's class for it, and without its words."""
        listen(url)
        run(files(spark, inbox(1)).writeStream.foreachBatch(orders), checkpoint)

        def failing(frame, batch_id):
            raise ValueError("the secret word")

        again = files(spark, inbox(1)).writeStream.foreachBatch(failing).option("checkpointLocation", checkpoint)
        query = again.queryName("orders").start()
        with pytest.raises(Exception, match="the secret word"):
            query.awaitTermination(PATIENCE_SECONDS)
        assert wait_until(OffsetsStore(url).failures, PATIENCE_SECONDS)
        assert states(url)["orders"][0] == "refused"
        (failure,) = OffsetsStore(url).failures()
        assert (failure.seen_by, failure.run_id) == ("listener", str(query.runId))
        assert "secret" not in failure.code + failure.message
        ended = "SELECT ended_by FROM pgonce.heartbeats WHERE ended_at IS NOT NULL AND (run_id, ended_by) = (%s, %s)"
        assert wait_until(lambda: observer.execute(ended, [failure.run_id, failure.code]).fetchall(), PATIENCE_SECONDS)

    def test_what_the_commit_has_kept_already(self, spark, url, admin, observer, listen, orders, inbox, checkpoint):
        """A refused batch is listed once, by the commit; the run's end has the same code."""
        admin.execute("ALTER TABLE orders ADD CHECK (id < 0)")
        listen(url)
        writer = files(spark, inbox(2)).writeStream.foreachBatch(orders).option("checkpointLocation", checkpoint)
        query = writer.queryName("orders").start()
        with pytest.raises(Exception, match="CHECK_VIOLATION"):
            query.awaitTermination(PATIENCE_SECONDS)
        ended = "SELECT ended_by FROM pgonce.heartbeats WHERE ended_at IS NOT NULL"
        assert wait_until(lambda: observer.execute(ended).fetchall() == [("CHECK_VIOLATION",)], PATIENCE_SECONDS)
        (failure,) = OffsetsStore(url).failures()
        assert (failure.seen_by, failure.attempts, failure.batch_id) == ("commit", 1, 0)
        assert states(url) == {"orders": ("refused", "CHECK_VIOLATION")}

    def test_what_the_planner_has_kept_already(self, spark, url, observer, listen, inbox, checkpoint):
        """A table that is missing is found before rows are computed, and listed once."""
        listen(url)
        writer = files(spark, inbox(1)).writeStream.format("pgonce").option("url", url).option("table", "missing")
        query = writer.option("checkpointLocation", checkpoint).queryName("orders").start()
        with pytest.raises(Exception, match="TARGET_MISSING"):
            query.awaitTermination(PATIENCE_SECONDS)
        ended = "SELECT ended_by FROM pgonce.heartbeats WHERE ended_at IS NOT NULL"
        assert wait_until(lambda: observer.execute(ended).fetchall() == [("TARGET_MISSING",)], PATIENCE_SECONDS)
        (failure,) = OffsetsStore(url).failures()
        assert (failure.seen_by, failure.attempts, failure.batch_id) == ("planner", 1, 0)
        assert (failure.query_id, failure.query_name, failure.run_id) == (str(query.id), "orders", None)

    def test_a_ledger_without_the_tables_for_it(self, url, admin, caplog):
        """Nothing is raised, what is dropped is counted, and a warning says why."""
        ensure_ledger(url)
        admin.execute("""
            DELETE FROM pgonce.schema_version WHERE version >= 101; DROP VIEW pgonce.health, pgonce.queries;
            DROP TABLE pgonce.heartbeats, pgonce.failures; ALTER TABLE pgonce.progress DROP COLUMN lag
        """)
        listener = OffsetsListener(url)
        listener.onQueryProgress(Event(0))
        assert listener.close(30)
        assert (listener.stored, listener.dropped) == (0, 1)
        assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1


class TestCodes:
    @pytest.mark.parametrize(
        ("text", "error_class", "code"),
        [
            (None, None, None),
            ("x.Error: Trace\npgonce.offsets_store.errors.CommitError: [LOCKED] Held. Help: Wait.", "A.B", "LOCKED"),
            ("[STREAM_FAILED] Query x: [LOCKED] Batch 1 waited. Help: Wait.\nMore", "STREAM_FAILED", "LOCKED"),
            ("java.lang.OutOfMemoryError: Java heap space", "STREAM_FAILED", "STREAM_FAILED"),
            ("java.lang.OutOfMemoryError: Java heap space", None, "java.lang.OutOfMemoryError"),
            ("", None, "UNKNOWN_ERROR"),
        ],
    )
    def test_what_ended_a_run(self, text, error_class, code):
        """Our code if Spark's text has it, else the class that Spark gives, else that of the exception."""
        assert code_of_end(text, error_class) == code


class TestWatch:
    @pytest.mark.slow
    @pytest.mark.parametrize("ended_by", ["SIGTERM", pytest.param("EXIT", marks=pytest.mark.thorough)])
    def test_what_ends_a_driver(self, start_driver, url, store, tmp_path, ended_by):
        """A query is seen in its first batch; a driver that ends says why, and the signal ends it as without us."""
        settings = spark_settings(tmp_path, kafka=False)
        told = json.dumps({"url": url, "settings": settings, "folder": str(tmp_path)})
        driver = start_driver(ENDED_JOB, told, env=with_tests_on_path())
        driver.wait_for(lambda: [one.state for one in store.states()] == ["starting"], "its query was seen")
        if ended_by == "SIGTERM":
            os.kill(driver.pid, signal.SIGTERM)
            assert driver.wait(20) == -signal.SIGTERM
        else:
            (tmp_path / "end").touch()
        assert wait_until(lambda: [one.state for one in store.states()] == ["gone"], 30)
        (state,) = store.states()
        assert (state.query_name, state.severity) == ("orders", "warning")
        assert ("SIGTERM" in state.because) is (ended_by == "SIGTERM")

    def test_a_client_of_spark_connect(self, connect, url, observer):
        """Its session is watched as well: events come to the client."""
        listener = watch(connect, url)
        try:
            assert watch(connect, url) is listener
            query = connect.readStream.format("rate").load().writeStream.format("noop").queryName("far").start()
            names = "SELECT query_name FROM pgonce.heartbeats"
            assert wait_until(lambda: observer.execute(names).fetchall() == [("far",)], PATIENCE_SECONDS)
            query.stop()
        finally:
            connect.streams.removeListener(listener)
            listener.close(5)

    def test_once_a_session_and_url(self, spark, url):
        """The same listener is returned, until it is closed."""
        listener = watch(spark, url)
        try:
            assert watch(spark, url) is listener
            other = watch(spark, AWAY)
            assert other is not listener
            spark.streams.removeListener(other)
            other.close(1)
            assert watch(spark, url) is listener
        finally:
            spark.streams.removeListener(listener)
            listener.close(5)
        again = watch(spark, url)
        assert again is not listener
        spark.streams.removeListener(again)
        again.close(5)
