"""
A primary and a standby: which of them is written to, and which rows each shows at which time.

Covers: offsets_store.commit.retrying, offsets_store.commit.one_transaction.

Whole queries under failovers are in tests/guarantee/test_replicas.py.
"""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pyarrow as pa
import pytest
from maven import MissingTool
from pgbouncer import PgBouncer
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import types as t
from replicated_postgres import url_of
from sqlalchemy import text
from support.batches import make_batch
from support.committed_rows import TABLE, appending, ids, rows, settings
from support.fixtures.proxy import Proxy
from support.fixtures.skips import unavailable
from support.ledger_history import QUERY
from support.patience import PATIENCE_SECONDS
from support.recoveries import history, recover_at_once
from support.stopped_query import entries, files_of, write_checkpoint
from support.two_servers import two_servers

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.preflight.answers import Holds
from pgonce.offsets_store.preflight.check import check_server
from pgonce.offsets_store.recovery.new_checkpoint import write_new_checkpoint
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.stager import Stager
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagingTable
from pgonce.sink.writing.write_batch import write_batch_in_tx


@pytest.fixture(scope="module")
def servers():
    """A primary and its standby, which keep their parts for all tests that share them."""
    with two_servers() as both:
        yield both


@pytest.fixture
def database(servers):
    """A database of the test's own, on both servers."""
    primary, standby = servers
    name = f"test_{time.monotonic_ns()}"
    with psycopg.connect(primary.uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    with psycopg.connect(primary.uri(name), autocommit=True) as connection:
        connection.execute(TABLE)
    standby.wait_for(primary)
    return name


def rows_of(server, database):
    """All ids in a server's table."""
    with psycopg.connect(server.uri(database), autocommit=True) as connection:
        return ids(connection)


def test_a_standby_is_refused_in_words(servers, database):
    """Where libpq takes the first host that answers and that is a standby, the error says what to add to the url."""
    primary, standby = servers
    url = url_of(standby, primary, database=database)
    for prepare in (lambda: None, lambda: commit_batch(settings(primary.uri(database)), make_batch(0), appending(1))):
        prepare()
        standby.wait_for(primary)
        began = time.monotonic()
        with pytest.raises(PgonceError, match=r"READ_ONLY.*target_session_attrs=read-write"):
            commit_batch(settings(url, retry_timeout=60), make_batch(1), appending(2))
        assert time.monotonic() - began < 20


def test_a_task_that_would_stage_at_a_standby_fails_at_once(servers, database):
    """It does not wait there, because nothing tells it that the server will be promoted; Spark tries it again."""
    primary, standby = servers
    ensure_ledger(primary.uri(database))
    standby.wait_for(primary)
    rows_of_task = iter([pa.record_batch({"id": pa.array([1], pa.int64())})])
    struct = t.StructType([t.StructField("id", t.LongType())])
    stager = Stager(standby.uri(database), StagingTable("query", "events", "run", 7), struct, 12, 60)
    began = time.monotonic()
    with pytest.raises(PgonceError, match=r"STAGING_FAILED.*25006"):
        stager.stage(rows_of_task)
    assert time.monotonic() - began < 20


def test_the_primary_is_found(servers, database):
    """With target_session_attrs=read-write, the order of the hosts is all the same."""
    primary, standby = servers
    url = url_of(standby, primary, database=database, target_session_attrs="read-write")
    assert commit_batch(settings(url), make_batch(0), appending(1)) is Verdict.NEW
    assert rows_of(primary, database) == [1]


def test_a_standby_can_be_asked(servers, database):
    """Programs that only read the ledger may do so on a standby."""
    primary, standby = servers
    commit_batch(settings(primary.uri(database)), make_batch(0), appending(1))
    standby.wait_for(primary)
    assert OffsetsStore(standby.uri(database)).latest("q1").batch_id == 0


def test_no_recovery_goes_by_a_standby(servers, database, tmp_path):
    """
    A standby may lag behind the primary: a checkpoint is not taken back to what it has, and no new one is written from
    it.
    """
    primary, standby = servers
    history(primary.uri(database), 5)
    standby.wait_for(primary)
    checkpoint = write_checkpoint(tmp_path / "ckpt", entries(*range(9)), range(9))
    before = files_of(checkpoint)
    for recovered in (
        lambda url: recover_at_once(checkpoint, url),
        lambda url: write_new_checkpoint(QUERY, str(tmp_path / "new"), url, quiet_seconds=0),
    ):
        with pytest.raises(PgonceError, match=r"\[READ_ONLY\].*target_session_attrs=read-write"):
            recovered(url_of(standby, primary, database=database))
    assert files_of(checkpoint) == before
    assert not (tmp_path / "new").exists()
    assert recover_at_once(checkpoint, primary.uri(database)).stands_at == 5


def test_the_preflight_knows_a_standby(servers, database):
    """`pgonce check` says that a standby refuses to write, which host it is, and what to add to the url."""
    primary, standby = servers
    found = {one.name: one for one in check_server(url_of(standby, primary, database=database))}["primary"]
    assert found.holds is Holds.NO
    assert f"port {standby.port} of 127.0.0.1 is a standby" in found.says
    assert "target_session_attrs=read-write" in found.remedy
    both = url_of(standby, primary, database=database, target_session_attrs="read-write")
    assert {one.name: one.holds for one in check_server(both)}["primary"] is Holds.YES


def test_a_subscriber_sees_whole_batches(servers, database):
    """A logical subscriber of two tables has all rows of a batch, in both of them, or none."""
    primary, _ = servers
    copy = f"{database}_copy"
    with psycopg.connect(primary.uri(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {copy}")
    tables = "CREATE TABLE orders (id bigint); CREATE TABLE lines (id bigint)"
    with (
        psycopg.connect(primary.uri(database), autocommit=True) as publisher,
        psycopg.connect(primary.uri(copy), autocommit=True) as subscriber,
    ):
        publisher.execute(f"{tables}; CREATE PUBLICATION both_tables FOR TABLE orders, lines")
        # A slot of the same server must be there before its subscription.
        publisher.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [copy])
        subscriber.execute(tables)
        subscriber.execute(
            f"CREATE SUBSCRIPTION {copy} CONNECTION '{url_of(primary, database=database)}' "
            "PUBLICATION both_tables WITH (create_slot = false, copy_data = false)"
        )
        seen, enough = set(), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(_write_pairs, primary.uri(database), enough)
            until = time.monotonic() + PATIENCE_SECONDS
            try:
                while len(seen) < 5:
                    assert time.monotonic() < until, sorted(seen)
                    assert not writing.done(), writing.exception()
                    counts = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM lines)"
                    seen |= set(subscriber.execute(counts).fetchall())
            finally:
                enough.set()
        subscriber.execute(f"DROP SUBSCRIPTION {copy}")
    assert all(orders == lines and orders % 100 == 0 for orders, lines in seen), sorted(seen)


_EVERYTHING = """
CREATE TABLE orders (
    number bigint GENERATED ALWAYS AS IDENTITY, id bigint NOT NULL, name text,
    twice bigint GENERATED ALWAYS AS (id * 2) STORED, touched text, PRIMARY KEY (number, id)
) PARTITION BY RANGE (id);
CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (2);
CREATE TABLE high PARTITION OF orders FOR VALUES FROM (2) TO (10);
CREATE FUNCTION touch() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.touched := 'by trigger'; RETURN NEW; END $$;
CREATE TRIGGER touch BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION touch();
ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY up_to_five ON orders USING (true) WITH CHECK (id <= 5);
"""


def test_a_table_with_everything_behind_a_pooler_and_a_standby(servers, database):
    """Partitions, a trigger, identity, a generated column and policies: each batch is on the standby, or nowhere."""
    primary, standby = servers
    role = f"writer_{time.monotonic_ns()}"
    with psycopg.connect(primary.uri(database), autocommit=True) as admin:
        admin.execute(f"{_EVERYTHING}; CREATE ROLE {role} LOGIN; GRANT INSERT, SELECT ON orders TO {role}")
        ensure_ledger(primary.uri(database))
        for grant in grants(role):
            admin.execute(grant.encode())
    server = {**conninfo_to_dict(primary.tcp_uri()), "user": role}
    try:
        pooler = PgBouncer(server)
    except MissingTool as missing:
        unavailable(str(missing))

    def publish(connection, _, __):
        where = destination("orders", "append", (), None)
        write_batch_in_tx(driver_connection(connection), where, rows(*batch))
        return Published(len(batch), "test")

    with pooler:
        url = pooler.url(database)
        work = Work(lambda _: "public.orders", publish)
        batch = (1, 2, 5)
        assert commit_batch(settings(url), make_batch(0, sink_name="public.orders"), work) is Verdict.NEW
        batch = (3, 6)
        with pytest.raises(PgonceError, match="TARGET_NOT_PERMITTED"):
            commit_batch(settings(url), make_batch(1, sink_name="public.orders"), work)
        batch = (3, 4)
        assert commit_batch(settings(url), make_batch(1, sink_name="public.orders"), work) is Verdict.NEW
    standby.wait_for(primary)
    with psycopg.connect(standby.uri(database), autocommit=True) as reader:
        found = reader.execute("SELECT id, twice, touched, tableoid::regclass::text FROM orders ORDER BY id").fetchall()
        last = reader.execute("SELECT last_batch_id FROM pgonce.writers").fetchall()
    assert found == [(i, 2 * i, "by trigger", "low" if i < 2 else "high") for i in range(1, 6)]
    assert last == [(1,)]


def _write_pairs(url, enough):
    """Write 100 rows into each of two tables, batch after batch, until it is enough."""

    def publish(connection, batch, _):
        for table in ("orders", "lines"):
            connection.execute(text(f"INSERT INTO {table} SELECT generate_series(1, 100)"))
        return Published(200, "test")

    number = 0
    while not enough.is_set():
        commit_batch(settings(url), make_batch(number, sink_name="both"), Work(lambda _: "both", publish))
        number += 1


@contextmanager
def changing():
    """Two servers of the test's own, which may change their parts; one of them has the table."""
    with two_servers() as (one, two):
        with psycopg.connect(one.uri(), autocommit=True) as connection:
            connection.execute(TABLE)
        two.wait_for(one)
        yield one, two


def test_a_standby_that_is_to_be_promoted_is_waited_for(caplog):
    """In a failover, a name may lead to the standby before it is promoted: a process that has committed waits."""
    with changing() as (one, two), caplog.at_level(logging.WARNING, logger="pgonce"):
        url = url_of(two, one)
        two.halt("fast")
        assert commit_batch(settings(url), make_batch(0), appending(1)) is Verdict.NEW
        two.start()
        two.wait_for(one)
        # The pool's connection is still one to the primary.
        with psycopg.connect(one.uri(), autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'pgonce'"
            )
        with pytest.raises(PgonceError, match="READ_ONLY.*target_session_attrs"):
            commit_batch(settings(url, retry_timeout=0.5), make_batch(1), appending(2))
        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(commit_batch, settings(url, retry_timeout=60), make_batch(1), appending(2))
            wait_for_line(caplog, "batch 1 of query q1: trying again", committing)
            one.halt("fast")
            two.promote()
            assert committing.result() is Verdict.NEW
        assert rows_of(two, "postgres") == [1, 2]


@pytest.mark.parametrize(
    ("is_received", "verdict"), [(True, Verdict.LANDED), (False, Verdict.NEW)], ids=["received", "lost"]
)
def test_a_commit_whose_answer_is_lost_in_a_failover(is_received, verdict):
    """The new primary's ledger tells: a batch that it has is not written again, and one that it lacks is."""
    with changing() as (one, two):
        proxy = Proxy(conninfo_to_dict(one.tcp_uri()))
        here = conninfo_to_dict(proxy.url)
        url = (
            f"postgresql://postgres@{here['host']}:{here['port']},{two.host}:{two.port}/postgres"
            "?target_session_attrs=read-write"
        )
        try:
            commit_batch(settings(url), make_batch(0), appending(1))
            two.wait_for(one)
            hold = proxy.hold_after_commit(touching="events")
            if not is_received:
                two.hear_nothing()
            with ThreadPoolExecutor(1) as pool:
                committing = pool.submit(commit_batch, settings(url, retry_timeout=60), make_batch(1), appending(2))
                hold.wait()
                if is_received:
                    two.wait_for(one)
                one.halt("sigkill")
                proxy.stop()
                two.promote()
                assert committing.result() is verdict
        finally:
            proxy.stop()
        assert rows_of(two, "postgres") == [1, 2]


def test_remote_apply_waits_until_the_standby_is_back(caplog, monkeypatch):
    """The log says what COMMIT waits for; once the standby is back, the batch can be read there when COMMIT returns."""
    monkeypatch.setattr("pgonce.offsets_store.commit.commit_watch.WAIT_LOGGED_EVERY_SECONDS", 0.2)
    with changing() as (one, two), caplog.at_level(logging.WARNING, logger="pgonce"):
        one.configure(synchronous_standby_names="two", synchronous_commit="remote_apply")
        assert commit_batch(settings(one.uri()), make_batch(0), appending(1)) is Verdict.NEW
        assert rows_of(two, "postgres") == [1]
        assert _of_standbys(one) == (Holds.YES, True)
        two.halt()
        assert _of_standbys(one) == (Holds.NO, True)
        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(commit_batch, settings(one.uri()), make_batch(1), appending(2))
            try:
                wait_for_line(caplog, "too few synchronous standbys have confirmed it", committing)
                assert rows_of(one, "postgres") == [1]
                two.start()
                assert committing.result() is Verdict.NEW
            finally:
                one.configure(synchronous_standby_names="")
        assert rows_of(two, "postgres") == [1, 2]


def _of_standbys(server):
    """Whether the preflight finds the synchronous standby, and names it."""
    found = {one.name: one for one in check_server(server.uri())}["standbys"]
    return found.holds, "'two'" in found.says


def wait_for_line(caplog, line, committing):
    """Wait until the log has the words, while the commit is under way."""
    until = time.monotonic() + PATIENCE_SECONDS
    while line not in caplog.text:
        assert not committing.done(), committing.exception() or committing.result()
        assert time.monotonic() < until, caplog.text
        time.sleep(0.02)
