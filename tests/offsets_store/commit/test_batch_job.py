"""
The commit of a batch job, without Spark: keys, lost answers, jobs that run at once, and hashes.

Covers: offsets_store.ledger.batch_jobs.
"""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from sqlalchemy import event
from support.audit import waiting_commits
from support.batches import make_batch
from support.committed_rows import appending, ids, job, settings, writing
from support.fixtures.driver import wait_until
from support.fixtures.postgres import url_at
from support.patience import PATIENCE_SECONDS

from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.one_transaction import application_name
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError, RefusedBatch
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.verdict.decide import Verdict

pytestmark = pytest.mark.usefixtures("events")


def test_names_with_dots_are_two(admin, url):
    """A job into one table is not skipped because the same key was published into another, whose name looks like it."""
    admin.execute('CREATE SCHEMA a; CREATE SCHEMA "a.b"')
    tables = 'a."b.c"', '"a.b".c'
    for table in tables:
        admin.execute(f"CREATE TABLE {table} (id bigint, name text)".encode())
        assert commit_job(settings(url), job(), writing(1, table=table)).verdict is JobVerdict.PUBLISHED
        assert ids(admin, table) == [1]
    assert commit_job(settings(url), job(), writing(1, table=tables[0])).verdict is JobVerdict.SKIPPED
    found = admin.execute("SELECT sink_name FROM pgonce.batch_jobs ORDER BY committed_at").fetchall()
    assert [name for (name,) in found] == list(tables)


def skips(admin):
    """How many runs were skipped."""
    return admin.execute("SELECT count(*) FROM pgonce.batch_job_skips").fetchone()[0]


def test_rows_and_key_are_written_together(admin, url):
    """A new key leaves its rows and its record, and no streaming writer."""
    first = job()
    assert commit_job(settings(url), first, writing(1, 2)).verdict is JobVerdict.PUBLISHED
    assert ids(admin) == [1, 2]
    recorded = admin.execute(
        "SELECT sink_name, batch_key, attempt, rows, transport, content_hash, "
        "targets = jsonb_build_object(sink_name, 'events'::regclass::oid::bigint) FROM pgonce.batch_jobs"
    ).fetchall()
    assert recorded == [("public.events", "monday", first.attempt, 2, "inline", None, True)]
    assert admin.execute("SELECT count(*) FROM pgonce.writers").fetchone() == (0,)


def test_the_same_key_again_is_skipped_and_counted(admin, url):
    """Each run that is skipped counts once, with any rows; another key, or another sink, is another job."""
    commit_job(settings(url), job(), writing(1))
    for _ in range(2):
        assert commit_job(settings(url), job(), writing(2, 3)).verdict is JobVerdict.SKIPPED
    for key, sink in [("tuesday", None), ("monday", "other"), ("friday", "other"), ("friday", None)]:
        assert commit_job(settings(url), job(key), writing(4, sink_name=sink)).verdict is JobVerdict.PUBLISHED
    assert ids(admin) == [1, 4, 4, 4, 4]
    assert skips(admin) == 2


def test_an_error_leaves_no_key(admin, url):
    """Where the rows cannot be written the key is free, and the next run publishes."""

    def fail():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        commit_job(settings(url), job(), writing(1, then=fail))
    assert commit_job(settings(url), job(), writing(1)).verdict is JobVerdict.PUBLISHED
    assert ids(admin) == [1]


def test_a_key_whose_record_a_person_deletes_meanwhile_is_claimed(admin, url):
    """Between the statement that finds the key taken and the one that looks by whom."""
    commit_job(settings(url), job(), writing(1))

    def deletes_before(_connection, _cursor, statement, *_):
        if statement.lstrip().startswith("SELECT j.sink_name"):
            admin.execute("DELETE FROM pgonce.batch_jobs")

    event.listen(engine_for(url), "before_cursor_execute", deletes_before)
    try:
        assert commit_job(settings(url), job(), writing(2)).verdict is JobVerdict.PUBLISHED
    finally:
        event.remove(engine_for(url), "before_cursor_execute", deletes_before)
    assert admin.execute("SELECT count(*) FROM pgonce.batch_jobs").fetchone() == (1,)


def test_what_postgres_refuses_is_said_of_a_job(admin, url):
    """It has no stored offsets, and nothing but the scheduler runs it again."""
    with pytest.raises(PgonceError, match=r"UNIQUE_VIOLATION.* job .*Help: .* job ") as refused:
        commit_job(settings(url), job(), writing(1, then=_raise_unique))
    assert "offsets" not in str(refused.value)
    assert "query" not in refused.value.remedy


def _raise_unique():
    raise psycopg.errors.UniqueViolation("one of them is there")


def test_a_skip_whose_answer_was_lost_counts_once(admin, url, proxy):
    """The second try finds that its attempt was counted."""
    commit_job(settings(url), job(), writing(1))
    proxy.cut_after_commit(touching="batch_job_skips")
    assert commit_job(settings(proxy.url), job(), writing(1)).verdict is JobVerdict.SKIPPED
    assert proxy.hits["cut_after_commit"] == 1
    assert skips(admin) == 1


CLAIM = "INSERT INTO pgonce.batch_jobs (sink_name, batch_key, attempt) VALUES ('public.events', 'monday', %s)"


@pytest.mark.usefixtures("ledger")
class TestTwoAtOnce:
    """Two runs of one job, from two schedulers."""

    def test_one_publishes_and_the_others_wait_and_skip(self, admin, url):
        """Each that comes while the first one writes is skipped when that is done."""
        begun, go_on = threading.Event(), threading.Event()
        patient = settings(url, lock_timeout=60, retry_timeout=60)
        slow = writing(1, then=lambda: (begun.set(), go_on.wait(60)))
        with ThreadPoolExecutor() as pool:
            first = pool.submit(commit_job, patient, job(), slow)
            assert begun.wait(60)
            others = [pool.submit(commit_job, patient, job(), writing(1)) for _ in range(3)]
            assert wait_until(lambda: waiting_commits(admin) == 3, PATIENCE_SECONDS)
            go_on.set()
            verdicts = [each.result(PATIENCE_SECONDS).verdict for each in (first, *others)]
        assert verdicts == [JobVerdict.PUBLISHED, *[JobVerdict.SKIPPED] * 3]
        assert ids(admin) == [1]
        assert skips(admin) == 3

    def test_one_creates_the_table_for_all(self, admin, url):
        """Those that come while the table is created find it afterwards: another key publishes, the same is skipped."""
        begun, go_on = threading.Event(), threading.Event()
        patient = settings(url, lock_timeout=60, retry_timeout=60)
        slow = writing(1, table="fresh", create_table=True, then=lambda: (begun.set(), go_on.wait(60)))
        with ThreadPoolExecutor() as pool:
            first = pool.submit(commit_job, patient, job(), slow)
            assert begun.wait(60)
            quick = writing(1, table="fresh", create_table=True)
            others = [pool.submit(commit_job, patient, job(key), quick) for key in ("tuesday", "monday")]
            assert wait_until(lambda: waiting_commits(admin) == 2, PATIENCE_SECONDS)
            go_on.set()
            verdicts = [each.result(PATIENCE_SECONDS).verdict for each in (first, *others)]
        assert verdicts == [JobVerdict.PUBLISHED, JobVerdict.PUBLISHED, JobVerdict.SKIPPED]
        assert ids(admin, "fresh") == [1, 1]

    def test_if_the_first_fails_the_second_publishes(self, admin, url):
        """A key that was claimed and not committed is free again."""
        with psycopg.connect(url) as first:
            first.execute(CLAIM, [uuid.uuid4()])
            threading.Timer(0.5, first.rollback).start()
            assert commit_job(settings(url, lock_timeout=30), job(), writing(1)).verdict is JobVerdict.PUBLISHED
        assert ids(admin) == [1]

    def test_a_frozen_job_that_holds_the_key_is_ended(self, admin, url):
        """A stopped process of ours does not hold the key for ever: its uncommitted transaction is aborted."""
        with psycopg.connect(url, application_name=application_name("frozen")) as frozen:
            frozen.execute(CLAIM, [uuid.uuid4()])
            assert commit_job(settings(url, retry_timeout=20), job(), writing(1)).verdict is JobVerdict.PUBLISHED
            with pytest.raises(psycopg.OperationalError):
                frozen.execute("SELECT 1")
        assert ids(admin) == [1]

    @pytest.mark.parametrize(
        ("isolation", "before"), [("read committed", (1, 2)), ("repeatable read", ()), ("serializable", (1, 2))]
    )
    def test_two_that_replace_all_rows_leave_the_rows_of_one(self, before, isolation, admin, url):
        """With two keys, too, and whatever the role's isolation level: the second one deletes the first one's rows."""
        commit_job(settings(url), job("before"), writing(*before))
        begun, go_on = threading.Event(), threading.Event()
        patient = settings(url_at(url, isolation), lock_timeout=60, retry_timeout=60)
        slow = writing(3, mode="complete", then=lambda: (begun.set(), go_on.wait(60)))
        with ThreadPoolExecutor() as pool:
            first = pool.submit(commit_job, patient, job("one"), slow)
            assert begun.wait(60)
            second = pool.submit(commit_job, patient, job("two"), writing(4, mode="complete"))
            assert wait_until(lambda: waiting_commits(admin), PATIENCE_SECONDS)
            # A reader sees the old rows until one of them is done.
            assert ids(admin) == list(before)
            go_on.set()
            assert first.result(PATIENCE_SECONDS).verdict is second.result(PATIENCE_SECONDS).verdict
        assert ids(admin) == [4]


class TestHashes:
    """With batchHash, the same key with other rows is refused."""

    def test_another_hash_is_refused(self, admin, url):
        """It is never skipped silently, and not counted as skipped; the same hash is a retry."""
        commit_job(settings(url), job(content_hash="1:aa"), writing(1))
        with pytest.raises(RefusedBatch, match="BATCH_CHANGED.*'monday'.*public.events"):
            commit_job(settings(url), job(content_hash="1:bb"), writing(2))
        assert ids(admin) == [1]
        assert skips(admin) == 0
        assert commit_job(settings(url), job(content_hash="1:aa"), writing(1)).verdict is JobVerdict.SKIPPED

    def test_a_job_that_was_not_hashed_cannot_be_compared(self, admin, url):
        """That is refused as well. Without the option a run is skipped, whether or not the recorded one has a hash."""
        commit_job(settings(url), job(), writing(1))
        with pytest.raises(RefusedBatch, match="BATCH_CHANGED"):
            commit_job(settings(url), job(content_hash="1:bb"), writing(2))
        commit_job(settings(url), job("hashed", "1:aa"), writing(3))
        assert commit_job(settings(url), job("hashed"), writing(4)).verdict is JobVerdict.SKIPPED
        assert ids(admin) == [1, 3]


def test_a_stream_and_batch_jobs_write_one_table(admin, url):
    """Neither is the other's rival, and the ledger of the one says nothing to the other."""
    assert commit_job(settings(url), job(), writing(1)).verdict is JobVerdict.PUBLISHED
    assert commit_batch(settings(url), make_batch(0), appending(2)) is Verdict.NEW
    assert commit_job(settings(url), job("tuesday"), writing(3)).verdict is JobVerdict.PUBLISHED
    assert commit_batch(settings(url), make_batch(1), appending(4)) is Verdict.NEW
    assert ids(admin) == [1, 2, 3, 4]


def test_a_job_that_is_skipped_says_so_in_the_log(admin, url, caplog):
    """The key, when and by which run it was published; another number of rows is more than a skip."""
    first = job()
    commit_job(settings(url), first, writing(1, 2, 3))
    (published,) = admin.execute("SELECT committed_at FROM pgonce.batch_jobs").fetchone()
    with caplog.at_level("INFO", logger="pgonce"):
        for has in (3, None, 5):
            caplog.clear()
            commit_job(settings(url), replace(job(), rows=has), writing(1, 2, 3))
            line, told = caplog.records
            assert told.getMessage().startswith("skipped batch_key=monday sink=public.events verdict=SKIPPED rows=0")
            said = line.getMessage()
            assert line.levelname == "WARNING"
            facts = ("'monday'", "public.events", f"{published:%Y-%m-%d %H:%M:%S %Z}", " 3 rows", str(first.attempt))
            assert [fact for fact in facts if fact not in said] == []
            assert (" 5 rows" in said) is (has == 5)
    assert skips(admin) == 3
