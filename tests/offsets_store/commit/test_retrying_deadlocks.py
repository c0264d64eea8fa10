"""Writers that get into each other's way: locks in opposite orders, and the same moment."""

import itertools
import logging
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pyspark.sql.types as t
import pytest
from psycopg.conninfo import make_conninfo
from support.batches import make_batch
from support.committed_rows import verdict_or_code
from support.fixtures.driver import wait_until
from support.typed_rows import typed_rows
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection, engine_for
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.options.destination import destination


def settings(url):
    """Settings with which deadlocks are found soon."""
    return CommitSettings(make_conninfo(url, options="-cdeadlock_timeout=20ms"), lock_timeout=10, retry_timeout=20)


def batch(writer, batch_id, **changes):
    """Batch N of the query of this number, which shares nothing with others but its sink."""
    fields = {
        "query_id": f"query {writer}",
        "run_id": f"run {writer}",
        "start": {"0": {f"topic {writer}": {"0": batch_id}}},
        "end": {"0": {f"topic {writer}": {"0": batch_id + 1}}},
        **changes,
    }
    return make_batch(batch_id, **fields)


def write(connection, mode, writer, batch_id, ids):
    """Write rows that tell who wrote them."""
    keys = ("id",) if mode == "upsert" else ()
    columns = dict.fromkeys(("id", "writer", "batch_id"), t.LongType())
    rows = typed_rows(columns, [(number, writer, batch_id) for number in ids])
    write_batch_in_tx(driver_connection(connection), destination("shared", mode, keys, None), rows)
    return Published(len(ids), "test")


@pytest.fixture
def admin(admin):
    """A connection that may do anything, with a shared table that notes every write, and two counters."""
    admin.execute(
        "CREATE TABLE shared (id bigint PRIMARY KEY, writer bigint, batch_id bigint);"
        "CREATE TABLE writes (id bigint, writer bigint, batch_id bigint);"
        "CREATE TABLE counter AS SELECT 0::bigint AS n; CREATE TABLE other_counter AS TABLE counter;"
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        "'BEGIN INSERT INTO writes VALUES (NEW.*); RETURN NULL; END';"
        "CREATE TRIGGER note AFTER INSERT OR UPDATE ON shared FOR EACH ROW EXECUTE FUNCTION note()"
    )
    return admin


def together(writers, rounds, commit):
    """
    Let every writer commit its batches in a thread of its own, in step; the verdicts, by round.

    :param commit: called with writer, batch id, and a function that waits for the others the first time it is called.
    """
    in_step = threading.Barrier(writers, timeout=20)

    def run(writer):
        verdicts = []
        for batch_id in range(rounds):
            in_step.wait()
            met = threading.Event()

            def meet(met=met, batch_id=batch_id):
                # Not in a first batch: first contacts with one sink are in single file.
                if batch_id and not met.is_set():
                    met.set()
                    in_step.wait()

            verdicts.append(commit(writer, batch_id, meet))
        return verdicts

    with ThreadPoolExecutor(writers) as pool:
        return list(zip(*pool.map(run, range(writers)), strict=True))


def assert_each_batch_is_there_once(admin, writers, rounds, ids=None):
    """Every batch is recorded, and where ``ids`` were written, each of them once a batch."""
    recorded = admin.execute("SELECT query_id, batch_id FROM pgonce.batches JOIN pgonce.writers USING (writer_id)")
    batches = [(writer, number) for writer in range(writers) for number in range(rounds)]
    assert sorted(recorded.fetchall()) == [(f"query {writer}", number) for writer, number in batches]
    if ids is not None:
        written = admin.execute("SELECT writer, batch_id, id FROM writes ORDER BY 1, 2, 3").fetchall()
        assert written == [(*one, number) for one in batches for number in ids]


def deadlocks(admin, url):
    """How many deadlocks Postgres has broken in this database; sessions tell when they end."""
    engine_for(settings(url).url).dispose()
    open_sessions = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgonce%' AND datname = current_database()"
    )
    assert wait_until(lambda: admin.execute(open_sessions).fetchone() == (0,))
    row = admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()
    return row[0]


@pytest.mark.parametrize("writers", [2, 4])
def test_upserts_of_the_same_keys_lock_them_in_one_order(writers, admin, url):
    """Writers whose batches hold the same keys in different orders wait for each other, and never in a circle."""
    rounds, ids = 15, range(200)

    def commit(writer, batch_id, meet):
        def publish(connection, *_):
            meet()
            return write(connection, "upsert", writer, batch_id, random.sample(ids, len(ids)))

        return commit_batch(settings(url), batch(writer, batch_id), Work(lambda _: "shared", publish))

    assert {*sum(together(writers, rounds, commit), ())} == {Verdict.NEW}
    assert_each_batch_is_there_once(admin, writers, rounds, ids)
    assert deadlocks(admin, url) == 0


@pytest.mark.parametrize("writers", [2, 4])
def test_functions_that_lock_in_opposite_orders_all_come_through(writers, admin, url, caplog):
    """Postgres breaks a real deadlock by ending one transaction; that batch is tried again, whole."""
    rounds = 6

    def commit(writer, batch_id, meet):
        def publish(connection, *_):
            meet()
            first, second = ("counter", "other_counter") if writer % 2 else ("other_counter", "counter")
            connection.exec_driver_sql(f"UPDATE {first} SET n = n + 1")
            connection.exec_driver_sql("SELECT pg_sleep(0.05)")
            connection.exec_driver_sql(f"UPDATE {second} SET n = n + 1")
            return Published(0, "function")

        return commit_batch(settings(url), batch(writer, batch_id), Work(lambda _: "shared", publish, sealed=True))

    with caplog.at_level(logging.WARNING, "pgonce"):
        assert {*sum(together(writers, rounds, commit), ())} == {Verdict.NEW}
    assert_each_batch_is_there_once(admin, writers, rounds)
    totals = admin.execute("SELECT counter.n, other_counter.n FROM counter, other_counter").fetchall()
    assert totals == [(writers * rounds, writers * rounds)]
    assert caplog.text.count("deadlock detected") == deadlocks(admin, url) > 0


def meeting_once(meet, sink):
    """Name the sink; at the first try, meet the other when both have their snapshot and neither the writer's row."""
    tries = itertools.count()

    def name_sink(connection):
        connection.exec_driver_sql("SELECT 1")
        if next(tries) == 0:
            meet.wait()
        return sink

    return name_sink


def test_two_runs_of_one_batch_publish_it_once(admin, url):
    """Two drivers that commit one batch at the same moment: one publishes it, the other finds it published."""
    meet = threading.Barrier(2, timeout=20)

    def commit(query, run):
        work = Work(meeting_once(meet, "shared"), lambda connection, *_: write(connection, "append", query, 0, [query]))
        return commit_batch(settings(url), batch(query, 0, run_id=f"run {run}"), work)

    with ThreadPoolExecutor(2) as pool:
        for query in range(10):
            assert {*pool.map(partial(commit, query), range(2))} == {Verdict.NEW, Verdict.REPLAY}
    assert_each_batch_is_there_once(admin, 10, 1)
    assert admin.execute("SELECT id FROM shared ORDER BY 1").fetchall() == [(query,) for query in range(10)]


def test_two_new_queries_of_one_checkpoint_location_see_each_other(admin, url):
    """A checkpoint that two drivers make at the same moment: the query that comes second to the sink is refused."""
    meet = threading.Barrier(2, timeout=20)

    def commit(sink, query):
        work = Work(meeting_once(meet, f"sink {sink}"), lambda *_: Published(0, "test"))
        one = batch(f"{sink}/{query}", 0, checkpoint_location="/checkpoints/shared")
        return verdict_or_code(settings(url), one, work)

    with ThreadPoolExecutor(2) as pool:
        for sink in range(10):
            assert {*pool.map(partial(commit, sink), range(2))} == {"NEW", "FOREIGN"}
