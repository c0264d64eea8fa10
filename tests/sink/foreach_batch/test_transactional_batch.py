"""
What a transactional function may do: temporary tables, threads, savepoints, settings; and what it may not swallow.

Covers: sink.foreach_batch.batch_transaction.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

import psycopg
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from support.audit import wrong_ledger, wrong_rows
from support.fixtures.driver import wait_until
from support.inbox import Inbox, create_events, events
from support.query_runs import assert_refused, finish

from pgonce import PgonceError, PostgresBatchWriter, transactional_batch

pytestmark = pytest.mark.spark

MADE = "CREATE TEMPORARY TABLE arrived (LIKE public.events INCLUDING ALL)"
MOVED = "INSERT INTO events SELECT * FROM arrived"


def changes(batch):
    """The batch's rows as changes that only write."""
    return batch.withColumn("gone", f.lit(False))


WAYS = {
    "append": lambda tx, batch, table: tx.append(batch, table),
    "append of another type": lambda tx, batch, table: tx.append(batch.withColumn("id", f.expr("int(id)")), table),
    "upsert": lambda tx, batch, table: tx.upsert(batch, table, ["id"]),
    "only newer": lambda tx, batch, table: tx.upsert(batch, table, order_by="id", only_newer=True),
    "apply": lambda tx, batch, table: tx.apply(changes(batch), table, delete_when="gone"),
    "replace": lambda tx, batch, table: tx.replace(batch, table),
    "delete": lambda tx, batch, table: (tx.append(batch, table), tx.delete(batch.where("id < 0"), table))[0],
}


class Bench:
    """A query that a function writes, over an inbox with a file a batch."""

    def __init__(self, spark, url, checkpoint, folder):
        self.inbox, self.url, self.checkpoint = Inbox(folder), url, checkpoint
        self._rows = events(spark, folder)
        create_events(url, "events", keyed=True)
        self.inbox.add(10)
        self.inbox.add(5)

    def stream(self, function):
        """The query that the function writes."""
        write = transactional_batch(self.url, name="a function")(function)
        return self._rows.writeStream.foreachBatch(write).option("checkpointLocation", self.checkpoint)

    def what_is_wrong(self, observer):
        """The table against the inbox, and the ledger against the checkpoint."""
        return [*wrong_rows(observer, "events", self.inbox.rows), *wrong_ledger(observer, self.checkpoint)]


@pytest.fixture
def bench(spark, url, checkpoint, tmp_path):
    """The query has two batches to write."""
    return Bench(spark, url, checkpoint, tmp_path / "inbox")


# `make test` has the one that deletes, too.
IN_SHORT = ("delete",)


@pytest.mark.parametrize(
    ("way", "then"),
    [
        *(pytest.param(way, "", marks=() if way in IN_SHORT else pytest.mark.thorough) for way in WAYS),
        ("append", " ON COMMIT DROP"),
    ],
)
def test_rows_go_through_a_table_of_the_functions_own(bench, way, then, observer):
    """However they are written, and though the table may stay in the session, which the next batch gets again."""

    def function(batch, tx):
        tx.execute(MADE + then)
        assert WAYS[way](tx, batch, "arrived") == batch.count()
        assert tx.execute(MOVED).rowcount == batch.count()

    finish(bench.stream(function))
    assert bench.what_is_wrong(observer) == []
    # What went away with the batches is not what they published.
    recorded = observer.execute("SELECT rows, counts, tables FROM pgonce.batches").fetchall()
    assert recorded == [(0, None, None)] * 2
    assert observer.execute("SELECT targets FROM pgonce.writers").fetchone() == (None,)


def creates_a_table_from_the_frame(batch, tx):
    """In pg_temp, so that it needs no CREATE TABLE of the user's; the permanent table of that name is another one."""
    tx.append(batch, "pg_temp.events", create_table=True)
    tx.execute("INSERT INTO public.events SELECT * FROM pg_temp.events")


def leaves_a_table_of_the_same_name(batch, tx):
    """A temporary table comes before a permanent one, and would take the rows of the next batch with it."""
    tx.append(batch, "events")
    tx.execute("CREATE TEMPORARY TABLE events (id bigint)")


def takes_a_role_back(batch, tx):
    """It has it for some of the SQL."""
    tx.execute("SET LOCAL ROLE pg_monitor")
    tx.execute("SELECT 1")
    tx.execute("RESET ROLE")
    tx.append(batch, "events")


def prepares_a_statement(batch, tx):
    """The next batch may prepare it again."""
    tx.execute("PREPARE mine AS SELECT 1")
    tx.append(batch, "events")


@pytest.mark.parametrize(
    "function",
    [creates_a_table_from_the_frame, leaves_a_table_of_the_same_name, takes_a_role_back, prepares_a_statement],
)
def test_what_a_function_does_to_its_session_is_not_in_the_next_batchs_way(bench, function, observer):
    """Each batch is published, and no row is lost."""
    finish(bench.stream(function))
    assert bench.what_is_wrong(observer) == []


def test_a_delete_from_a_temporary_table_is_not_remembered(bench, observer):
    """It would be remembered for days, of a table that goes away; that is said, and nothing is written."""

    def function(batch, tx):
        tx.execute(MADE)
        tx.apply(changes(batch), "arrived", delete_when="gone", order_by="id", only_newer=True)

    assert_refused(bench.stream(function), "TARGET_NOT_DURABLE")
    assert observer.execute("SELECT count(*) FROM events").fetchone() == (0,)


def wrong_column(batch, tx):
    """The table has no such column."""
    tx.append(batch.withColumnRenamed("id", "number"), "events")


def no_table(batch, tx):
    """There is no such table."""
    tx.append(batch, "elsewhere")


def bad_option(batch, tx):
    """There is no such option."""
    tx.append(batch, "events", new_columns="add")


def failing_job(batch, tx):
    """Spark cannot make the rows."""
    tx.append(batch.withColumn("id", f.expr("raise_error('no such rate')").cast("long")), "events")


def bad_parameters(batch, tx):
    """Psycopg refuses it, and Postgres does not hear of it."""
    tx.execute("INSERT INTO events VALUES (%s)", [1, 2])


@pytest.mark.parametrize("call", [wrong_column, no_table, bad_option, failing_job, bad_parameters])
def test_a_batch_is_not_committed_without_a_call_that_failed(bench, observer, call):
    """The function swallows its error, and all that it does before and afterwards goes with it."""

    def function(batch, tx):
        tx.execute("INSERT INTO events VALUES (-1)")
        with suppress(Exception):
            call(batch, tx)

    assert_refused(bench.stream(function), "STATEMENT_FAILED")
    assert observer.execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert observer.execute("SELECT count(*) FROM pgonce.batches").fetchone() == (0,)


def test_what_a_savepoint_took_back_was_not_published(bench, observer, admin, spark, tmp_path):
    """Neither its rows nor its tables are in the ledger, so another query may be the first to feed such a table."""
    admin.execute("CREATE TABLE tried (LIKE events)")

    def function(batch, tx):
        with suppress(ZeroDivisionError), tx.connection.begin_nested():
            tx.append(batch, "tried")
            1 / 0  # noqa: B018 (it raises)
        with suppress(PgonceError), tx.connection.begin_nested():
            wrong_column(batch, tx)
        with tx.connection.begin_nested():
            assert tx.append(batch, "events") == tx.rows

    finish(bench.stream(function))
    assert bench.what_is_wrong(observer) == []
    recorded = observer.execute("SELECT rows, tables FROM pgonce.batches ORDER BY batch_id").fetchall()
    assert recorded == [(10, None), (5, None)]
    assert observer.execute("SELECT targets FROM pgonce.writers").fetchone()[0].keys() == {"public.events"}
    other = events(spark, bench.inbox.folder).writeStream.foreachBatch(PostgresBatchWriter(bench.url, table="tried"))
    finish(other.option("checkpointLocation", str(tmp_path / "other")))
    assert observer.execute("SELECT count(*) FROM tried").fetchone() == (15,)


def test_a_connection_that_is_lost_in_the_functions_own_sql(bench, observer):
    """The batch is tried again, as wherever else the line may break."""
    calls = []

    def function(batch, tx):
        calls.append(tx.batch_id)
        tx.append(batch, "events")
        if len(calls) == 1:
            tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")

    finish(bench.stream(function))
    assert calls == [0, 0, 1]
    assert bench.what_is_wrong(observer) == []


async def coroutine(batch, tx):
    """A call makes a coroutine, which nothing runs."""
    tx.append(batch, "events")


def generator(batch, tx):
    """A call makes a generator, which nothing runs."""
    yield tx.append(batch, "events")


@pytest.mark.parametrize("function", [coroutine, generator])
def test_a_function_that_a_call_does_not_run_is_refused(bench, observer, function):
    """Its batches would be recorded without rows. It is refused at once, or when its call has made what it makes."""
    with pytest.raises(PgonceError, match="FUNCTION_NOT_RUN"):
        transactional_batch(bench.url, name="a function")(function)
    of_a_call = partial(lambda call, *both: call(*both), function)
    assert_refused(bench.stream(of_a_call), "FUNCTION_NOT_RUN")
    assert observer.execute("SELECT count(*) FROM pgonce.batches").fetchone() == (0,)


def test_rows_of_threads_that_write_together_are_there_once(bench, observer, admin):
    """They may write at the same time; all of their rows are there once."""
    tables = [f"part{number}" for number in range(4)]
    for table in tables:
        admin.execute(f"CREATE TABLE {table} (LIKE events)")

    def function(batch, tx):
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda table: tx.append(batch, table), tables))
        tx.append(batch, "events")

    finish(bench.stream(function))
    assert bench.what_is_wrong(observer) == []
    for table in tables:
        assert observer.execute(f"SELECT count(*), count(DISTINCT id) FROM {table}").fetchone() == (15, 15)


def test_a_thread_that_the_function_did_not_wait_for_is_refused(bench, observer):
    """What it does after the function has returned would be in another batch's way."""
    kept = []

    def function(batch, tx):
        if kept:
            with pytest.raises(PgonceError, match="TRANSACTION_ENDED"):
                kept[0].execute("INSERT INTO events VALUES (-1)")
        kept.append(tx)
        tx.append(batch, "events")

    finish(bench.stream(function))
    assert bench.what_is_wrong(observer) == []


@pytest.mark.parametrize(
    "fails",
    [
        lambda _: psycopg.connect("host=127.0.0.1 port=1 connect_timeout=1"),
        lambda url: psycopg.connect(url, autocommit=True).execute("INSERT INTO keyed VALUES (1), (1)"),
    ],
    ids=["not there", "refuses a row"],
)
def test_an_error_of_another_database_is_the_functions_own(bench, admin, observer, fails):
    """It is neither tried again nor told as an error of the batch's table."""
    admin.execute("CREATE TABLE keyed (id bigint PRIMARY KEY)")
    calls = []

    def function(batch, tx):
        calls.append(tx.batch_id)
        tx.append(batch, "events")
        fails(bench.url)

    with pytest.raises(StreamingQueryException, match=r"(?s)OperationalError|UniqueViolation") as raised:
        finish(bench.stream(function))
    assert "Nothing" not in str(raised.value)
    assert calls == [0]
    assert observer.execute("SELECT count(*) FROM events").fetchone() == (0,)


@pytest.mark.parametrize(
    "changes", ["SET LOCAL ROLE pg_monitor", "SET LOCAL synchronous_commit = off", "SET TRANSACTION READ ONLY"]
)
def test_settings_that_a_batch_needs_are_to_be_taken_back(bench, observer, changes):
    """The error says that the function has changed them, not what an administrator could do."""

    def function(batch, tx):
        tx.append(batch, "events")
        tx.execute(changes)

    assert_refused(bench.stream(function), "SETTINGS_CHANGED")
    assert observer.execute("SELECT count(*) FROM events").fetchone() == (0,)


def opened(tx):
    """A stream of psycopg, of which only the first row was read."""
    stream = tx.connection.connection.driver_connection.cursor().stream("SELECT generate_series(1, 300000)")
    next(stream)
    return stream


def raises(batch, tx, stream):
    """The traceback keeps the stream."""
    raise ValueError("a bad row in lookup")


def returns(batch, tx, stream):
    """The function has kept the stream elsewhere."""


def executes(batch, tx, stream):
    """A statement of SQL would wait for the stream."""
    tx.execute("SELECT 1")


def appends(batch, tx, stream):
    """So would a call that writes a frame."""
    tx.append(batch, "events")


@pytest.mark.parametrize("then", [raises, returns, executes, appends])
def test_a_stream_that_a_function_leaves_open_ends_with_an_error(then, bench, admin):
    """A statement of the commit would wait for it for ever, and keep the locks of the transaction."""
    kept = []

    def function(batch, tx):
        tx.execute("INSERT INTO events (id) VALUES (-1)")
        kept.append(opened(tx))
        then(batch, tx, kept[-1])

    with pytest.raises(StreamingQueryException, match="ValueError" if then is raises else r"\[STATEMENT_FAILED\]"):
        finish(bench.stream(function))
    assert_no_transaction_is_open(admin)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_a_savepoint_around_an_open_stream_ends_with_an_error(bench, admin):
    """To go back to it is a statement, too."""

    def function(batch, tx):
        with tx.connection.begin_nested():
            stream = opened(tx)
            raise ValueError(f"a bad row in {stream}")

    assert_refused(bench.stream(function), "STATEMENT_FAILED")
    assert_no_transaction_is_open(admin)


def assert_no_transaction_is_open(admin):
    """The server has noticed that the session was ended."""
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND xact_start IS NOT NULL "
        "AND pid <> pg_backend_pid()"
    )
    assert wait_until(lambda: admin.execute(others).fetchone() == (0,))


def test_a_writer_that_waits_for_its_own_function(bench):
    """Nobody else can end that wait, and the error says so."""
    inner = PostgresBatchWriter(bench.url, table="events", sink_name="inner", lock_timeout=1, retry_timeout=2)

    def function(batch, tx):
        tx.execute("LOCK TABLE events")
        inner(batch, tx.batch_id)

    with pytest.raises(StreamingQueryException, match=r"\[LOCKED\].* tx\b"):
        finish(bench.stream(function))
