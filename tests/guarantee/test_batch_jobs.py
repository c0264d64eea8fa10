"""A batch job whose driver is killed, and two that run at once: its rows are in the table once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import batch_job
from support.audit import waiting_commits
from support.batch_job import ROWS, frame, save
from support.committed_rows import TABLE, ids
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings

from pgonce.offsets_store.ledger.migrations import ensure_ledger

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def admin(admin, url):
    """A connection that may do anything, with the target table made."""
    admin.execute(TABLE)
    ensure_ledger(url)
    return admin


@pytest.fixture
def scheduled(start_driver, tmp_path, proxy):
    """Start the job in a driver of its own, which reaches Postgres through the proxy, or as it is told."""

    def start(by=proxy.url, **options):
        settings = spark_settings(tmp_path, kafka=False) | {"spark.ui.showConsoleProgress": "false"}
        arguments = [by, "monday", json.dumps(options), json.dumps(settings)]
        return start_driver(Path(batch_job.__file__), *arguments, env=with_tests_on_path())

    return start


def ledger(admin):
    """What the ledger has: jobs and their rows, how many runs were skipped, and how many staging tables are left."""
    jobs = admin.execute("SELECT batch_key, rows FROM pgonce.batch_jobs").fetchall()
    skips = admin.execute("SELECT count(*) FROM pgonce.batch_job_skips").fetchone()[0]
    return jobs, skips, admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone()[0]


@pytest.mark.parametrize("inline_bytes", ["1000000", "0"])
@pytest.mark.parametrize("moment", ["before_commit", "after_commit"])
def test_a_killed_driver_is_run_again(moment, inline_bytes, scheduled, spark, admin, url, proxy):
    """SIGKILL before COMMIT: the next run publishes. After it: the next run is skipped. What was staged is gone."""
    hold = getattr(proxy, f"hold_{moment}")(touching="batch_jobs")
    driver = scheduled(inlineBytes=inline_bytes)
    driver.wait_for(hold.reached.is_set, "it came to COMMIT")
    driver.sigkill()
    hold.cut()
    is_published = moment == "after_commit"
    assert ids(admin) == (list(range(ROWS)) if is_published else [])
    save(frame(spark), url, inlineBytes=inline_bytes)
    assert ids(admin) == list(range(ROWS))
    assert ledger(admin) == ([("monday", ROWS)], int(is_published), 0)


def test_two_schedulers_run_one_job(scheduled, admin, url, proxy):
    """The second one waits until the first one has committed, and is skipped; neither takes the other's staged rows."""
    hold = proxy.hold_before_commit(touching="batch_jobs")
    first = scheduled(inlineBytes="0")
    first.wait_for(hold.reached.is_set, "it came to COMMIT")
    second = scheduled(url, inlineBytes="0", lockTimeout="60")
    second.wait_for(lambda: waiting_commits(admin), "it waited for the first one's key")
    assert ids(admin) == []
    hold.release()
    assert (first.wait(), second.wait()) == (0, 0)
    assert ids(admin) == list(range(ROWS))
    assert ledger(admin) == ([("monday", ROWS)], 1, 0)
