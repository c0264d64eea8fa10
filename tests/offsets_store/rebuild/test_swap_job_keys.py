"""
Two tables are exchanged into which batch jobs write: a key is skipped where its rows are, and published elsewhere.

Covers: offsets_store.rebuild.exchange.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psycopg
import pytest
from support.batches import make_batch
from support.committed_rows import ids, job, rows, settings, writing
from support.recoveries import noted

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.recovery.by_hand import retire_sink
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.write_batch import work_into

TABLES = ("events", "events_new")


@pytest.fixture
def admin(url):
    """A connection that may do anything, with two tables, each fed by a query that has published one row."""
    with psycopg.connect(url, autocommit=True) as connection:
        for query, table, number in zip(("old", "new"), TABLES, (1, 2), strict=True):
            connection.execute(f"CREATE TABLE {table} (id bigint, name text)".encode())
            work = work_into(None, destination(table), rows(number))
            commit_batch(settings(url, retry_timeout=0), make_batch(0, f"run of {query}", query_id=query), work)
        yield connection


@pytest.fixture
def swap(pgonce):
    """Give the command."""

    def give(*more, yes=True):
        return pgonce("swap", *TABLES, "--reason", "a mended join", *more, *(["--yes"] if yes else []))

    return give


def run(url, key, table, number, **how):
    """Commit a batch job as ``df.write`` does."""
    return commit_job(settings(url, lock_timeout=10), job(key), writing(number, table=table, **how)).verdict


def in_tables(admin):
    """The ids in both tables."""
    return [ids(admin, name) for name in TABLES]


def keys(admin):
    """What the ledger has of each job, with whether the table of its sink is the one that has its rows."""
    return admin.execute(
        "SELECT sink_name, batch_key, targets = jsonb_build_object(sink_name, to_regclass(sink_name)::oid::bigint), "
        "(SELECT count(*) FROM pgonce.batch_job_skips AS s "
        " WHERE (s.sink_name, s.batch_key) = (j.sink_name, j.batch_key)) "
        "FROM pgonce.batch_jobs AS j ORDER BY 1, 2"
    ).fetchall()


class TestKeys:
    def test_they_go_with_the_rows(self, url, admin, swap):
        """A job that is run again is skipped where its rows are, and published where they are not."""
        run(url, "K1", "events", 101)
        run(url, "K1", "events_new", 101)
        run(url, "K2", "events_new", 102)
        run(url, "K3", "events", 103)
        assert "Batch jobs that were published into public.events and not into public.events_new: 1." in swap().stdout
        assert in_tables(admin) == [[2, 101, 102], [1, 101, 103]]
        verdicts = [run(url, key, "events", int(f"10{key[1]}")) for key in ("K1", "K2", "K3")]
        assert verdicts == [JobVerdict.SKIPPED, JobVerdict.SKIPPED, JobVerdict.PUBLISHED]
        assert in_tables(admin) == [[2, 101, 102, 103], [1, 101, 103]]
        assert run(url, "K2", "events_new", 102) is JobVerdict.PUBLISHED

    def test_what_was_skipped_goes_with_them(self, url, admin, swap):
        """Both tables may have the same key, and each keeps its own skips; swapped back, all is as it was."""
        for table in ("events", "events_new", "events_new"):
            run(url, "K1", table, 101)
        run(url, "K2", "events", 102)
        before = keys(admin)
        assert before == [
            ("public.events", "K1", True, 0),
            ("public.events", "K2", True, 0),
            ("public.events_new", "K1", True, 1),
        ]
        assert swap().exit_code == ExitCode.OK
        assert keys(admin) == [
            ("public.events", "K1", True, 1),
            ("public.events_new", "K1", True, 0),
            ("public.events_new", "K2", True, 0),
        ]
        assert swap("--back").exit_code == ExitCode.OK
        assert keys(admin) == before

    @pytest.mark.parametrize("table", TABLES)
    def test_keys_under_a_name_of_the_users_own(self, url, admin, swap, table):
        """Nothing says which table they mean afterwards, so the swap is refused, and the text names them."""
        run(url, "K1", table, 101, sink_name="mine")
        for yes in (False, True):
            found = swap(yes=yes)
            assert (found.exit_code, noted(admin)) == (ExitCode.NEEDS_PERSON, [])
            assert "[SWAP_REFUSED]" in found.stderr
            assert f"batch jobs with the sinkName 'mine' have written to public.{table}" in found.stderr
            assert "'K1'" in found.stderr
        # The keys become those of the table.
        shown = (Path(__file__).parents[3] / "docs/batch-jobs.md").read_text().split("```")[-2].removeprefix("sql")
        admin.execute(shown.replace("public.events", f"public.{table}").encode())
        assert swap().exit_code == ExitCode.OK
        (now_called,) = set(TABLES) - {table}
        assert run(url, "K1", now_called, 101) is JobVerdict.SKIPPED

    @pytest.mark.parametrize("gone", ["DROP TABLE events_new", "ALTER TABLE events_new RENAME TO archive"])
    def test_keys_of_a_table_that_had_the_name_before(self, url, admin, swap, gone):
        """After two rebuilds a key is with the table that has its rows, or nowhere: the job is published again."""
        run(url, "K1", "events", 101)
        run(url, "K1", "events_new", 101)
        run(url, "K2", "events", 102)
        assert swap().exit_code == ExitCode.OK
        retire_sink("old", url)
        admin.execute(f"{gone}; CREATE TABLE events_new (LIKE events)".encode())
        work = work_into(None, destination("events_new"), rows(2))
        commit_batch(settings(url, retry_timeout=0), make_batch(0, "run of newer", query_id="newer"), work)
        assert "Batch jobs that were published into public.events and not into public.events_new: 1." in swap().stdout
        assert ids(admin, "events") == [2]
        assert [run(url, key, "events", int(f"10{key[1]}")) for key in ("K1", "K2")] == [JobVerdict.PUBLISHED] * 2
        assert run(url, "K1", "events_new", 101) is JobVerdict.SKIPPED
        if "archive" in gone:
            assert [run(url, key, "archive", 0) for key in ("K1", "K2")] == [JobVerdict.SKIPPED] * 2
            assert ids(admin, "archive") == [1, 101, 102]

    def test_keys_under_an_earlier_name(self, url, admin, swap):
        """The table was called so when they were published; they go with it all the same."""
        admin.execute("ALTER TABLE events RENAME TO earlier")
        run(url, "K1", "earlier", 101)
        admin.execute("ALTER TABLE earlier RENAME TO events")
        assert "Batch jobs that were published into public.events and not into public.events_new: 1." in swap().stdout
        verdicts = [run(url, "K1", table, 101) for table in TABLES]
        assert verdicts == [JobVerdict.PUBLISHED, JobVerdict.SKIPPED]
        assert in_tables(admin) == [[2, 101], [1, 101]]


def test_a_job_in_the_middle_of_its_commit(url, admin, swap):
    """It is waited for, because its key and its rows belong together; jobs that come meanwhile wait for the swap."""
    entered, go_on, verdicts, swaps = threading.Event(), threading.Event(), [], []

    def stay():
        entered.set()
        assert go_on.wait(20)

    threads = [
        threading.Thread(target=lambda: verdicts.append(run(url, "K1", "events", 101, then=stay))),
        threading.Thread(target=lambda: swaps.append(swap())),
        threading.Thread(target=lambda: verdicts.append(run(url, "K1", "events_new", 101))),
        threading.Thread(target=lambda: verdicts.append(run(url, "K1", "events", 101))),
    ]
    threads[0].start()
    assert entered.wait(20)
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    for place, thread in enumerate(threads[1:], 1):
        thread.start()
        until = time.monotonic() + 15
        # A command may take its time to begin.
        while admin.execute(waiting).fetchone() != (place,):
            assert time.monotonic() < until
            time.sleep(0.02)
    assert (verdicts, swaps) == ([], [])
    go_on.set()
    for thread in threads:
        thread.join()
    assert swaps[0].exit_code == ExitCode.OK
    # One of these comes to the table that has the rows of the first one by then, and one to the other table.
    assert sorted(verdict.name for verdict in verdicts) == ["PUBLISHED", "PUBLISHED", "SKIPPED"]
    assert in_tables(admin) == [[2, 101], [1, 101]]
