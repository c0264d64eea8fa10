"""
The command that exchanges two tables is killed between any two of its steps: the names are as before, or exchanged.

Covers: offsets_store.rebuild.swap.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psycopg
import pytest
from support.batches import make_batch
from support.committed_rows import rows, settings
from support.fixtures.driver import wait_until
from support.recoveries import noted

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.write_batch import work_into

SWAP = ("swap", "events", "events_new", "--reason", "a mended join", "--yes")


def commit(url, query, table, batch_id, of):
    """Commit one row of a query into its table."""
    work = work_into(None, destination(table), rows(of))
    return commit_batch(settings(url, retry_timeout=0), make_batch(batch_id, f"run of {query}", query_id=query), work)


@pytest.fixture
def exchanged(url):
    """Whether the names and the ledger are as after the swap; they must agree."""
    with psycopg.connect(url, autocommit=True) as admin:
        for table in ("events", "events_new"):
            admin.execute(f"CREATE TABLE {table} (id bigint PRIMARY KEY, name text, n bigserial)".encode())
        commit(url, "old", "events", 0, 1)
        commit(url, "new", "events_new", 0, 2)

        def look():
            known = admin.execute(
                "SELECT (SELECT array_agg(id) FROM events), (SELECT array_agg(id) FROM events_new), "
                "pg_get_serial_sequence('events', 'n'), "
                "(SELECT sink_name FROM pgonce.writers WHERE query_id = 'old')"
            ).fetchone()
            before = ([1], [2], "public.events_n_seq", "public.events")
            after = ([2], [1], "public.events_n_seq", "public.events_new")
            assert (known, len(noted(admin))) in [(before, 0), (after, 2)]
            return known == after

        yield look


@pytest.fixture
def start(proxy):
    """Start the command in a process of its own, on the way through the proxy."""
    started = []

    def start():
        command = [sys.executable, "-m", "pgonce", *SWAP, "--url", proxy.url]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def sessions_of(observer):
    """How many sessions the command has left behind."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND client_port <> -1"
    return observer.execute(query).fetchone()[0]


@pytest.mark.parametrize(
    ("step", "times"),
    [
        (b"pg_advisory_xact_lock", 1),
        (b"FOR UPDATE", 1),
        (b"LOCK TABLE", 1),
        (b"LOCK TABLE", 2),
        (b"ALTER SEQUENCE", 2),
        (b"ALTER TABLE", 2),
        (b"UPDATE pgonce.batch_jobs", 2),
        (b"pgonce.interventions", 1),
        (b"pgonce.interventions", 2),
    ],
)
def test_killed_in_the_middle(step, times, proxy, start, exchanged, observer, pgonce, url):
    """Postgres undoes what was done; given again, the command exchanges the tables, and both queries go on."""
    seen = []

    def kill(_, message):
        if step in message:
            seen.append(message)
            if len(seen) == times:
                os.kill(process.pid, signal.SIGKILL)

    proxy.before_message = kill
    process = start()
    assert process.wait(30) == -signal.SIGKILL
    assert len(seen) == times
    proxy.before_message = None
    assert wait_until(lambda: sessions_of(observer) == 0)
    assert not exchanged()
    again_and_on(pgonce, exchanged, url)


def kill_at(hold, start):
    """Kill the command where the proxy holds its COMMIT, and then cut the line."""
    process = start()
    hold.wait()
    process.kill()
    process.wait()
    hold.cut()


def test_killed_before_commit(proxy, start, exchanged, pgonce, url):
    """Nothing has happened."""
    kill_at(proxy.hold_before_commit("RENAME"), start)
    assert not exchanged()
    again_and_on(pgonce, exchanged, url)


def test_killed_after_commit(proxy, start, exchanged, pgonce, url):
    """The tables are exchanged though nobody was told; given again, the command does not exchange them back."""
    kill_at(proxy.hold_after_commit("RENAME"), start)
    assert wait_until(exchanged)
    assert "[SWAP_AGAIN]" in pgonce(*SWAP).stderr
    assert exchanged()
    goes_on(url)


def again_and_on(pgonce, exchanged, url):
    """Give the command once more, and a batch to each of the queries."""
    assert pgonce(*SWAP).exit_code == ExitCode.OK
    assert exchanged()
    goes_on(url)


def goes_on(url):
    """Each query goes on under the name that its table has now."""
    commit(url, "old", "events_new", 1, 11)
    commit(url, "new", "events", 1, 12)
    with psycopg.connect(url) as connection:
        for table, ids in (("events", [2, 12]), ("events_new", [1, 11])):
            found = connection.execute(f"SELECT id FROM {table} ORDER BY id".encode()).fetchall()
            assert [number for (number,) in found] == ids
