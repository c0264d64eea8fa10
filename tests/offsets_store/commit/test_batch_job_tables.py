"""Batch jobs whose table was renamed, exchanged or dropped: a job is skipped only where the rows of its key are."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from support.audit import waiting_commits
from support.committed_rows import ids, job, settings, writing
from support.fixtures.driver import wait_until
from support.patience import PATIENCE_SECONDS

from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.errors import RefusedBatch

pytestmark = pytest.mark.usefixtures("events")

EXCHANGE = "ALTER TABLE events RENAME TO t; ALTER TABLE others RENAME TO events; ALTER TABLE t RENAME TO others"


@pytest.fixture
def others(admin):
    """Another table."""
    admin.execute("CREATE TABLE others (LIKE events)")


@pytest.fixture
def run(url):
    """Run the job with this key, and write a row with the id 1."""

    def give(key="monday", content_hash=None, **how):
        patient = settings(url, lock_timeout=60, retry_timeout=60)
        return commit_job(patient, job(key, content_hash), writing(1, **how)).verdict

    return give


def refused(run, **how):
    """The error of a job whose rows are elsewhere."""
    with pytest.raises(RefusedBatch, match=r"^\[BATCH_ELSEWHERE\]") as error:
        run(**how)
    return error.value


def test_a_sink_name_with_another_table(admin, run, others):
    """The job is refused, not skipped, because the other table lacks its rows; without the name it is published."""
    run(sink_name="mine")
    what = refused(run, table="others", sink_name="mine").what
    assert "'mine' into public.events " in what
    assert "public.others" in what
    assert run(table="others") is JobVerdict.PUBLISHED
    assert ids(admin, "others") == [1]


def test_a_table_that_became_a_partition(admin, run):
    """Its rows are in the table that has its name now, so the job is skipped."""
    run()
    admin.execute(
        "ALTER TABLE events RENAME TO older; CREATE TABLE events (LIKE older) PARTITION BY RANGE (id); "
        "ALTER TABLE events ATTACH PARTITION older DEFAULT"
    )
    assert run() is JobVerdict.SKIPPED
    assert ids(admin) == [1]


def test_a_table_that_was_dropped(admin, run):
    """The job does not say that its rows are there; once its record is deleted, it creates the table again."""
    run(table="fresh", create_table=True)
    admin.execute("DROP TABLE fresh")
    error = refused(run, table="fresh", create_table=True)
    assert "does not exist" in error.what
    admin.execute(error.remedy.split(": ")[1].encode())
    assert run(table="fresh", create_table=True) is JobVerdict.PUBLISHED
    assert ids(admin, "fresh") == [1]


@pytest.mark.parametrize("is_known", [True, False])
def test_a_table_that_was_created_again(admin, run, caplog, is_known):
    """The rows may be there again, so the job is skipped, and says so; not if a dump has brought back its record."""
    run()
    admin.execute("ALTER TABLE events RENAME TO old; CREATE TABLE events (LIKE old); DROP TABLE old")
    if not is_known:
        admin.execute("""UPDATE pgonce.batch_jobs SET targets = '{"public.events": 0}'""")
    assert run() is JobVerdict.SKIPPED
    assert ("public.events was created again since then" in caplog.text) is is_known


def test_tables_that_were_exchanged_by_hand(admin, run, others):
    """The job is skipped into the table that has its rows, and refused into the one that has its name."""
    run()
    admin.execute(EXCHANGE)
    assert run(table="others") is JobVerdict.SKIPPED
    error = refused(run)
    assert "public.events" in error.what
    assert "public.others" in error.what
    assert "public.others" in error.remedy
    assert (ids(admin), ids(admin, "others")) == ([], [1])


def test_a_table_that_was_renamed(admin, run):
    """The job is skipped under the new name, and compared with what was published; under the old one it is refused."""
    run(content_hash="1:aa")
    admin.execute("ALTER TABLE events RENAME TO orders")
    assert run(table="orders") is JobVerdict.SKIPPED
    with pytest.raises(RefusedBatch, match="BATCH_CHANGED"):
        run(table="orders", content_hash="1:bb")
    assert "does not exist" in refused(run).what
    assert run("tuesday", table="orders") is JobVerdict.PUBLISHED
    assert ids(admin, "orders") == [1, 1]
    skips = "SELECT sink_name, batch_key FROM pgonce.batch_job_skips"
    assert admin.execute(skips).fetchall() == [("public.events", "monday")]


def test_a_table_that_is_exchanged_while_a_job_waits_for_it(admin, url, run, others):
    """The rows are in the table to which the job comes then, so it is skipped."""
    run(table="others")
    with ThreadPoolExecutor() as pool:
        with psycopg.connect(url) as exchanging:
            exchanging.execute(EXCHANGE)
            waiting = pool.submit(run)
            assert wait_until(lambda: waiting_commits(admin), PATIENCE_SECONDS)
        assert waiting.result(PATIENCE_SECONDS) is JobVerdict.SKIPPED
    assert ids(admin) == [1]
