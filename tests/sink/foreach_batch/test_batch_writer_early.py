"""
A small batch's transaction begins while Spark's job runs, and never at the rows' expense; without Spark.

Covers: sink.foreach_batch.batch_writer.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from support.batches import make_batch
from support.committed_rows import TABLE, ids, rows, settings
from support.fixtures.driver import wait_until

from pgonce.offsets_store.errors import PgonceError
from pgonce.sink.foreach_batch import batch_writer
from pgonce.sink.foreach_batch.batch_writer import EarlyCommits
from pgonce.sink.options.destination import destination
from pgonce.sink.options.position_columns import position_columns
from pgonce.sink.writing.write_batch import work_into

# Their values are asked of no row here.
POSITIONS = position_columns(("topic", "partition", "offset"), written=False)


class Job:
    """Spark's job, as a commit sees it: rows that are there when the test says so, or an error."""

    def __init__(self):
        self.awaited = threading.Event()
        self._over = threading.Event()
        self._error = None

    def end(self, error=None):
        """All rows are there, or the job has failed."""
        self._error = error
        self._over.set()

    def wait(self, seconds=None):
        """As :class:`ArrivingBatches` does."""
        self.awaited.set()
        is_over = self._over.wait(seconds)
        if self._error:
            raise self._error
        return is_over


class Writer:
    """Commits batches of one row each, whose id is the batch's, while the test goes on."""

    def __init__(self, url, mode="append", *, by_position=False, **changes):
        self._commits = EarlyCommits(settings(url, **changes))
        self._destination = destination("events", mode, ("id",) if mode == "upsert" else (), None)
        self._by_position = by_position

    def commit(self, batch, job):
        """Begin; the result waits until the batch is committed."""
        made = rows(batch.batch_id)
        # They cannot be counted before the job has ended.
        source = replace(
            made, count=lambda: job.wait() and made.count(), positions=POSITIONS if self._by_position else None
        )
        result = Future()

        def commit():
            try:
                result.set_result(self._commits.commit(batch, source, job, self._work))
            except Exception as error:
                result.set_exception(error)

        # A test that fails leaves its job without an end.
        threading.Thread(target=commit, daemon=True).start()
        return result

    def commit_at_once(self, batch):
        """Commit a batch whose rows are there already."""
        job = Job()
        job.end()
        self.commit(batch, job).result(30)

    def _work(self, rows):
        return work_into(None, self._destination, rows)


@pytest.fixture
def admin(url):
    """A connection that may do anything, with the target table made."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute("ALTER TABLE events ADD PRIMARY KEY (id)")
        yield connection


@pytest.fixture
def patient(monkeypatch):
    """A transaction waits for its rows until the test is over."""
    monkeypatch.setattr(batch_writer, "PATIENCE_SECONDS", 60)


def waiting(admin):
    """How many transactions of pgonce wait for their client."""
    return admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'pgonce run%' AND state = 'idle in transaction'"
    ).fetchone()[0]


def begun(admin, writer):
    """A second batch whose transaction waits for its rows: its job, and its result."""
    writer.commit_at_once(make_batch(0))
    job = Job()
    result = writer.commit(make_batch(1), job)
    assert job.awaited.wait(30)
    assert waiting(admin) == 1
    return job, result


@contextmanager
def locked_writer(url):
    """Somebody else has locked the writer's row."""
    with psycopg.connect(url) as other:
        other.execute("SELECT FROM pgonce.writers FOR UPDATE")
        yield


@pytest.mark.parametrize(("mode", "by_position"), [("append", True), ("upsert", False), ("complete", False)])
def test_a_transaction_begins_before_its_rows_are_there(mode, by_position, patient, admin, url):
    """After a batch whose rows came soon, the next one has the writer's lock while its job runs, and writes nothing."""
    job, result = begun(admin, Writer(url, mode, by_position=by_position))
    with psycopg.connect(url) as other, pytest.raises(psycopg.errors.LockNotAvailable):
        other.execute("SELECT FROM pgonce.writers FOR UPDATE NOWAIT")
    # With complete, too: the rows that it will delete are nobody's yet.
    assert admin.execute("SELECT id FROM events FOR UPDATE NOWAIT").fetchall() == [(0,)]
    job.end()
    result.result(30)
    assert ids(admin) == ([1] if mode == "complete" else [0, 1])
    assert admin.execute("SELECT max(batch_id), max(rows) FROM pgonce.batches").fetchone() == (1, 1)


@pytest.mark.parametrize("run_id", ["run 1", "run 2"])
def test_the_first_batch_of_a_run_waits_for_its_rows(run_id, admin, url):
    """A run's first batch begins no transaction before its rows are there, even if another run used the writer."""
    writer = Writer(url)
    if run_id == "run 2":
        writer.commit_at_once(make_batch(0))
    job = Job()
    first = make_batch(1, run_id=run_id) if run_id == "run 2" else make_batch(0)
    result = writer.commit(first, job)
    assert not wait_until(lambda: waiting(admin), seconds=1)
    job.end()
    result.result(30)
    assert ids(admin)[-1:] == [first.batch_id]


def test_a_transaction_waits_only_so_long(monkeypatch, admin, url):
    """Rows that do not come soon find no transaction open; the next batch then waits for its own."""
    monkeypatch.setattr(batch_writer, "PATIENCE_SECONDS", 3)
    writer = Writer(url)
    job, result = begun(admin, writer)
    assert wait_until(lambda: waiting(admin) == 0)
    assert not result.done()
    job.end()
    result.result(30)
    assert ids(admin) == [0, 1]
    job = Job()
    result = writer.commit(make_batch(2), job)
    assert not wait_until(lambda: waiting(admin), seconds=1)
    job.end()
    result.result(30)
    assert ids(admin) == [0, 1, 2]


def test_what_spark_raises_is_raised(patient, admin, url):
    """A job that fails during its transaction leaves nothing, and its own error is the one that is heard."""
    job, result = begun(admin, Writer(url))
    job.end(ZeroDivisionError("in a task"))
    with pytest.raises(ZeroDivisionError, match="in a task"):
        result.result(30)
    assert (ids(admin), waiting(admin)) == ([0], 0)


def test_a_failed_job_does_not_wait_for_postgres(admin, url):
    """Where Postgres cannot be had either, a job's failure is heard at once, not when patience has ended."""
    writer = Writer(url, retry_timeout=600)
    writer.commit_at_once(make_batch(0))
    with locked_writer(url):
        job = Job()
        result = writer.commit(make_batch(1), job)
        job.end(ZeroDivisionError("in a task"))
        with pytest.raises(ZeroDivisionError):
            result.result(30)
    assert ids(admin) == [0]


@pytest.mark.parametrize("repaired", [True, False], ids=["passes", "stays"])
def test_an_early_refusal_counts_only_if_it_comes_again(repaired, admin, url, caplog):
    """What failed before the rows were there is tried once more, and then raised as it is."""
    caplog.set_level("INFO", "pgonce")
    writer = Writer(url)
    writer.commit_at_once(make_batch(0))
    admin.execute("ALTER TABLE events RENAME TO others")
    job = Job()
    result = writer.commit(make_batch(1), job)
    assert wait_until(lambda: "begins again when all its rows have arrived: [TARGET_MISSING]" in caplog.text)
    if repaired:
        admin.execute("ALTER TABLE others RENAME TO events")
    job.end()
    if repaired:
        result.result(30)
        assert ids(admin) == [0, 1]
    else:
        with pytest.raises(PgonceError, match="TARGET_MISSING"):
            result.result(30)


@pytest.mark.parametrize("fault", ["cut_in_copy", "cut_before_commit", "cut_during_commit", "cut_after_commit"])
def test_a_cut_line_leaves_the_batch_written_once(fault, patient, admin, proxy):
    """Wherever the line of an early transaction is cut, its rows are there once, and once recorded."""
    writer = Writer(proxy.url)
    job, result = begun(admin, writer)
    getattr(proxy, fault)(touching="events")
    job.end()
    result.result(30)
    assert proxy.hits[fault] == 1
    assert ids(admin) == [0, 1]
    assert admin.execute("SELECT count(*) FROM pgonce.batches WHERE batch_id = 1").fetchone() == (1,)


def test_a_line_that_breaks_while_rows_are_awaited(patient, admin, url):
    """An early transaction that somebody ends is begun again when the rows are there."""
    job, result = begun(admin, Writer(url))
    admin.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'pgonce run%'"
    )
    job.end()
    result.result(30)
    assert ids(admin) == [0, 1]


def test_an_outcome_that_cannot_be_asked_for_stays_unknown(patient, admin, proxy):
    """Where the answer to an early COMMIT is lost and Postgres stays away, no later try calls it a failure."""
    job, result = begun(admin, Writer(proxy.url, retry_timeout=2))
    hold = proxy.hold_after_commit(touching="events")
    job.end()
    hold.wait()
    proxy.stop()
    with pytest.raises(PgonceError, match="COMMIT_UNKNOWN"):
        result.result(60)


def test_a_replay_is_skipped_beside_its_job(patient, admin, url):
    """A proven replay needs no rows: it is skipped while its job still runs."""
    for number in range(2):
        Writer(url).commit_at_once(make_batch(number))
    restarted = Writer(url)
    restarted.commit_at_once(make_batch(0, run_id="run 2"))
    restarted.commit(make_batch(1, run_id="run 2"), Job()).result(30)
    assert ids(admin) == [0, 1]
    assert admin.execute("SELECT count(*) FROM pgonce.replays").fetchone() == (2,)
