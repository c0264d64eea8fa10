"""
Two tables are exchanged whose queries have put rows aside: each letter stays with its query and its table.

Covers: offsets_store.rebuild.exchange.
"""

from __future__ import annotations

import threading
import time

import psycopg
import pytest
from pyspark.sql import types as t
from support.batches import make_batch
from support.committed_rows import settings
from support.dead_letters import replayed
from support.typed_rows import typed_rows

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.write_batch import work_into

COLUMNS = {"id": t.LongType(), "name": t.StringType()}
TABLES = ("events", '"events New"')


@pytest.fixture
def admin(url):
    """A connection that may do anything, with two tables; the new one takes longer names."""
    with psycopg.connect(url, autocommit=True) as connection:
        for table, length in zip(TABLES, (3, 10), strict=True):
            connection.execute(f"CREATE TABLE {table} (id bigint, name varchar({length}))".encode())
        yield connection


def commit(url, query, table, *names, sink_name=None, batch_id=0, letters=True):
    """Commit a batch whose rows are put aside where they are too long."""
    how = destination(table, dead_letters=letters)
    work = work_into(sink_name, how, typed_rows(COLUMNS, list(enumerate(names, 1))))
    batch = make_batch(batch_id, f"run of {query}", query_id=query, query_name=query)
    return commit_batch(settings(url, remedies=Remedies(independent=True), retry_timeout=0), batch, work)


@pytest.fixture
def swap(pgonce):
    """Give the command."""

    def give(*more):
        return pgonce("swap", *TABLES, "--reason", "longer names", "--despite-differences", "--yes", *more)

    return give


def in_tables(admin):
    """The names in both tables."""
    found = [admin.execute(f"SELECT name FROM {table} ORDER BY id".encode()).fetchall() for table in TABLES]
    return [[name for (name,) in rows] for rows in found]


def letters(admin, table="pgonce.dead_letters"):
    """The query, the sink, the table and the recorded table of each letter."""
    return admin.execute(
        f"SELECT query_id, sink_name, target, destination ->> 'table' FROM {table} ORDER BY 1".encode()
    ).fetchall()


def mend(admin, table="pgonce.dead_letters"):
    """Let every row fit."""
    admin.execute(f"""UPDATE {table} SET row_data = jsonb_set(row_data, '{{name}}', '"ok"')""".encode())


BOTH = [
    ("new", 'public."events New"', 'public."events New"', '"public"."events New"'),
    ("old", "public.events", "public.events", '"public"."events"'),
]


class TestLettersInTheLedger:
    @pytest.mark.parametrize("sink_name", [None, "mine"])
    def test_they_stay_with_their_query_and_their_table(self, url, admin, swap, sink_name):
        """A replay finds them by their query, and writes each row to the table of the others of its batch."""
        commit(url, "old", TABLES[0], "abc", "toolong", sink_name=sink_name)
        commit(url, "new", TABLES[1], "abc", "toolong", "much too long", sink_name=sink_name)
        before = letters(admin)
        assert before == [(query, sink_name or sink, *table) for query, sink, *table in BOTH]
        assert swap().exit_code == ExitCode.OK
        moved = [("new", *BOTH[1][1:]), ("old", *BOTH[0][1:])]
        assert letters(admin) == [(query, sink_name or sink, *table) for query, sink, *table in moved]
        mend(admin)
        for query in ("old", "new"):
            (group,) = replayed(url, query)
            assert len(group.letters) == 1
        assert in_tables(admin) == [["abc", "toolong", "ok"], ["abc", "ok"]]
        assert letters(admin) == []

    def test_a_replay_that_waits_for_the_swap(self, url, admin, swap):
        """It was given before the swap and finds its letters under another sink after it: it writes nothing."""
        for query, table in zip(("old", "new"), TABLES, strict=True):
            commit(url, query, table, "abc", "much too long")
        mend(admin)
        done = []
        threads = [
            threading.Thread(target=lambda: done.append(swap().exit_code)),
            threading.Thread(target=lambda: done.append(replayed(url, "old"))),
        ]
        with psycopg.connect(url) as holder:
            holder.execute("SELECT FROM pgonce.writers FOR UPDATE")
            for thread in threads:
                thread.start()
                time.sleep(0.5)
            holder.rollback()
        for thread in threads:
            thread.join()
        assert sorted(map(str, done)) == ["0", "[]"] or in_tables(admin)[1] == ["abc", "ok"]
        assert in_tables(admin)[0] == ["abc"]


class TestLettersInATableOfTheUsersOwn:
    @pytest.fixture
    def own(self, url, admin, store):
        """Both queries put their bad rows into it; their sinks have a name that a swap does not change."""
        admin.execute("CREATE TABLE bad_rows (LIKE pgonce.dead_letters INCLUDING ALL)")
        for query, table in zip(("old", "new"), TABLES, strict=True):
            commit(url, query, table, "abc", "much too long", sink_name="mine", letters="bad_rows")
        mend(admin, "bad_rows")

    def test_they_are_not_replayed_into_the_other_table(self, url, admin, own, swap):
        """The name means another table now, and the replay says so, also when it only looks."""
        assert swap().exit_code == ExitCode.OK
        for query in ("old", "new"):
            for dry_run in (True, False):
                with pytest.raises(PgonceError) as error:
                    replayed(url, query, table="bad_rows", dry_run=dry_run)
                assert error.value.code == "REPLAY_UNSAFE"
                assert "pgonce swap" in str(error.value)
        assert in_tables(admin) == [["abc"], ["abc"]]
