"""
A primary and a standby: which of them is written to, and which rows each shows at which time.

Covers: offsets_store.commit.retrying, offsets_store.commit.one_transaction.

Whole queries under failovers are in tests/guarantee/test_replicas.py.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from replicated_postgres import url_of
from support.batches import make_batch
from support.blocked import wait_for_line, wait_for_standby
from support.committed_rows import TABLE, appending, ids, job, settings, stage_one, writing
from support.fixtures.proxy import Proxy
from support.recoveries import history, recover_at_once
from support.stopped_query import entries, files_of, write_checkpoint
from support.two_servers import two_servers

from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.status.states import read_states
from pgonce.offsets_store.verdict.decide import Verdict


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
    began = time.monotonic()
    with pytest.raises(PgonceError, match=r"STAGING_FAILED.*25006"):
        stage_one(standby.uri(database), retry_timeout=60)
    assert time.monotonic() - began < 20


def test_the_primary_is_found(servers, database):
    """With target_session_attrs=read-write, the order of the hosts is all the same."""
    primary, standby = servers
    url = url_of(standby, primary, database=database, target_session_attrs="read-write")
    assert commit_batch(settings(url), make_batch(0), appending(1)) is Verdict.NEW
    assert rows_of(primary, database) == [1]


def test_no_recovery_goes_by_a_standby(servers, database, tmp_path):
    """A standby may lag behind the primary: a checkpoint is not taken back to what it has."""
    primary, standby = servers
    history(primary.uri(database), 5)
    standby.wait_for(primary)
    checkpoint = write_checkpoint(tmp_path / "ckpt", entries(*range(9)), range(9))
    before = files_of(checkpoint)
    with pytest.raises(PgonceError, match=r"\[READ_ONLY\].*target_session_attrs=read-write"):
        recover_at_once(checkpoint, url_of(standby, primary, database=database))
    assert files_of(checkpoint) == before
    assert recover_at_once(checkpoint, primary.uri(database)).stands_at == 5


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


def test_remote_apply_waits_until_the_standby_is_back():
    """The ledger says what COMMIT waits for; once the standby is back, the batch can be read there when it returns."""
    with changing() as (one, two):
        one.configure(synchronous_standby_names="two", synchronous_commit="remote_apply")
        assert commit_batch(settings(one.uri()), make_batch(0), appending(1)) is Verdict.NEW
        assert rows_of(two, "postgres") == [1]
        two.halt()
        with ThreadPoolExecutor(1) as pool:
            committing = pool.submit(commit_batch, settings(one.uri()), make_batch(1), appending(2))
            try:
                wait_for_standby(one.uri(), committing)
                (query,), _ = read_states(one.uri())
                assert "synchronous standbys" in query.because
                assert "do not end the session" in query.help
                assert rows_of(one, "postgres") == [1]
                two.start()
                assert committing.result() is Verdict.NEW
            finally:
                one.configure(synchronous_standby_names="")
        assert rows_of(two, "postgres") == [1, 2]


@pytest.mark.parametrize("kind", ["stream", "job"])
def test_what_a_restarted_primary_shows_is_not_done_before_the_standby_has_it(kind):
    """A crash ends the wait for a synchronous standby. The next try finds its own rows, and waits for it again."""
    with changing() as (one, two):
        patient = settings(one.uri(), retry_timeout=60)
        ensure_ledger(one.uri())
        two.wait_for(one)
        one.configure(synchronous_standby_names="two", synchronous_commit="on")
        two.halt()
        with ThreadPoolExecutor(1) as pool:
            if kind == "job":
                committing = pool.submit(commit_job, patient, job(), writing(1))
            else:
                committing = pool.submit(commit_batch, patient, make_batch(0), appending(1))
            try:
                wait_for_standby(one.uri(), committing)
                one.halt("sigkill")
                one.start()
                wait_for_standby(one.uri(), committing)
                assert rows_of(one, "postgres") == [1]
                two.start()
                done = committing.result()
            finally:
                one.configure(synchronous_standby_names="")
        assert (done.verdict is JobVerdict.LANDED) if kind == "job" else (done is Verdict.LANDED)
        assert rows_of(two, "postgres") == [1]
