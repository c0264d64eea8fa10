"""
``df.write.format("pgonce")`` on a real Spark: what is published, skipped and refused.

Covers: sink.data_source.planning.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from support.batch_job import ROWS, frame, save
from support.committed_rows import TABLE, ids

pytestmark = pytest.mark.spark

STAGED = {"inlineBytes": 0}


@pytest.fixture
def admin(admin):
    """A connection that may do anything, with the target table made."""
    admin.execute(TABLE)
    return admin


def jobs(admin):
    """What the ledger has of each job: key, rows, transport, and how many runs were skipped."""
    return admin.execute(
        "SELECT batch_key, rows, transport, (SELECT count(*) FROM pgonce.batch_job_skips AS s "
        "WHERE s.batch_key = j.batch_key) FROM pgonce.batch_jobs AS j ORDER BY committed_at"
    ).fetchall()


def staged(admin):
    """How many staging tables there are."""
    return admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone()[0]


@pytest.mark.parametrize(("options", "transport"), [({}, "inline"), (STAGED, "staged")])
def test_a_job_is_published_once(options, transport, spark, admin, url):
    """The second run with its key is skipped and counted, even with other rows; another key is another job."""
    save(frame(spark), url, **options)
    save(frame(spark, 7), url, **options)
    save(frame(spark, 1), url, "tuesday", **options)
    assert ids(admin) == sorted([*range(ROWS), 0])
    # Of one row in two partitions, one is empty.
    assert jobs(admin) == [("monday", ROWS, transport, 1), ("tuesday", 1, transport, 0)]
    assert staged(admin) == 0
    assert admin.execute("SELECT count(*) FROM pgonce.writers").fetchone() == (0,)


def test_a_thread_of_the_users_own_needs_an_active_session(spark, admin, url):
    """Without one, Spark does not look for Python data sources; the line that the documents show is enough."""

    def write_with_session():
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 (PySpark has no public way)
        save(frame(spark), url)

    with ThreadPoolExecutor(1) as pool:
        with pytest.raises(Py4JJavaError, match="DATA_SOURCE_NOT_FOUND"):
            pool.submit(lambda: save(frame(spark), url)).result()
        pool.submit(write_with_session).result()
    assert ids(admin) == list(range(ROWS))


def test_a_job_without_rows_is_recorded(spark, admin, url):
    """Its key is taken; with overwrite, it empties the table."""
    save(frame(spark), url)
    save(frame(spark, 0), url, "tuesday")
    assert ids(admin) == list(range(ROWS))
    save(frame(spark, 0), url, "wednesday", "overwrite")
    assert ids(admin) == []
    assert [job[:2] for job in jobs(admin)] == [("monday", ROWS), ("tuesday", 0), ("wednesday", 0)]


def test_a_missing_table_is_refused_before_a_row_has_moved(spark, url):
    """As for a stream."""
    with pytest.raises(PySparkException, match="TARGET_MISSING"):
        save(frame(spark), url)


def test_other_save_modes_are_refused_by_spark(spark, admin, url):
    """Spark knows two modes for a Python data source; its default is not among them."""
    for mode in ("error", "ignore"):
        with pytest.raises(AnalysisException, match='UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*"Append" or "Overwrite"'):
            save(frame(spark), url, mode=mode)


def test_a_task_that_fails_leaves_nothing(spark, admin, url):
    """The key is free, and what was staged is dropped, at the latest by the sweep after a later job of the sink."""
    broken = frame(spark).selectExpr("id", "CASE WHEN id = 39 THEN name || char(0) ELSE name END AS name")
    with pytest.raises(PySparkException, match="NUL_IN_TEXT"):
        save(broken, url, **STAGED)
    assert ids(admin) == []
    save(frame(spark), url, **STAGED)
    assert ids(admin) == list(range(ROWS))
    if staged(admin):
        # A task that Spark had given up has staged its rows since then, and nobody waits for it: the next job drops
        # them.
        save(frame(spark, 1), url, "tuesday", **STAGED)
    assert staged(admin) == 0


def test_a_commit_that_fails_leaves_nothing(spark, admin, url):
    """Spark aborts after a refused commit: the staged rows go, and the key is free."""
    admin.execute("ALTER TABLE events ADD CHECK (id < 39)")
    with pytest.raises(PySparkException, match="ROW_REFUSED|CHECK|check"):
        save(frame(spark), url, **STAGED)
    assert ids(admin) == []
    assert staged(admin) == 0
    assert jobs(admin) == []


def test_a_lost_answer_to_commit(spark, admin, url, proxy):
    """The commit asks the ledger for its own attempt: the rows are there once, and no run was skipped."""
    save(frame(spark, 1), url, "before")
    proxy.cut_after_commit(touching="events")
    save(frame(spark), proxy.url)
    assert proxy.hits["cut_after_commit"] == 1
    assert sorted(ids(admin)) == sorted([0, *range(ROWS)])
    assert jobs(admin) == [("before", 1, "inline", 0), ("monday", ROWS, "inline", 0)]
