"""
Rows that were put aside are not written where a new query has read them again; they can still be given up.

Covers: pgonce.dead_letters.chosen_letters.
"""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.committed_rows import ids, settings
from support.dead_letters import replayed
from support.typed_rows import typed_rows
from support.with_rooms import work_into

from pgonce.dead_letters.chosen_letters import chosen_letters, discard_letters
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.recovery.by_hand import retire_sink
from pgonce.recovery.forget import forget_query
from pgonce.sink.options.destination import destination

COLUMNS = {"id": t.LongType(), "name": t.StringType()}
ROWS = [(1, "abc"), (2, "toolong")]


@pytest.fixture
def admin(url, admin):
    """A connection that may do anything; a query has put a row aside, and the table takes it by now."""
    admin.execute("CREATE TABLE events (id bigint, name varchar(3))")
    commit(url, "first", ROWS)
    admin.execute("ALTER TABLE events ALTER name TYPE varchar(20)")
    return admin


def commit(url, query, rows=ROWS, table="events", start=None, **remedies):
    """Commit batch 0 of a query."""
    work = work_into(None, destination(table, dead_letters=True), typed_rows(COLUMNS, rows))
    at = {"start": {"0": {"t": {"0": start}}}, "end": {"0": {"t": {"0": start + 10}}}} if start else {}
    batch = make_planned_batch(0, f"run of {query}", query_id=query, **at)
    return commit_batch(settings(url, remedies=Remedies(**remedies), retry_timeout=0), batch, work)


def go_on(url, query, replaces):
    """Take another query's place where it has ended."""
    return commit(url, query, [(3, "c")], start=10, replaces=replaces)


def forget(url, query):
    """Put a query out of the way of new ones."""
    return forget_query(query, url, reason="a full refresh", quiet_seconds=0)


def refused(url, query="first", **how):
    """What the replay says."""
    with pytest.raises(PgonceError, match=r"\[REPLAY_IMPOSSIBLE\]") as error:
        replayed(url, query, **how)
    return str(error.value)


class TestReadAgain:
    def test_after_it_was_forgotten(self, url, admin):
        """A user who forgets a query loads its tables again; a replay would write the row twice."""
        forget(url, "first")
        admin.execute("TRUNCATE events")
        commit(url, "second")
        assert "query first was forgotten" in refused(url, dry_run=True)
        assert "--discard" in refused(url)
        assert ids(admin) == [1, 2]
        assert len(discard_letters(chosen_letters(url, "first"), url, reason="read again")) == 1

    def test_after_a_query_that_had_gone_on_in_its_place(self, url, admin):
        """What was read again is what both had written."""
        go_on(url, "second", "first")
        forget(url, "second")
        assert "query second" in refused(url)

    def test_after_a_rebuilt_table_took_the_place_of_its_own(self, url, admin):
        """The query that filled the other table has read the row as well."""
        admin.execute("CREATE TABLE events_new (LIKE events)")
        commit(url, "second", table="events_new")
        with admin.transaction():
            admin.execute("ALTER TABLE events RENAME TO events_old; ALTER TABLE events_new RENAME TO events")
            admin.execute("SELECT pgonce.follow_exchange('events', 'events_old', 'r')")
        assert "query first was forgotten" in refused(url)
        assert ids(admin) == [1, 2]


class TestNotReadAgain:
    def test_by_a_query_that_went_on_where_it_ended(self, url, admin):
        """Nobody has read the row since."""
        go_on(url, "second", "first")
        replayed(url, "first")
        assert ids(admin) == [1, 2, 3]

    def test_after_it_was_retired(self, url, admin):
        """It publishes no more, and its rows stay."""
        retire_sink("first", url)
        replayed(url, "first")
        assert ids(admin) == [1, 2]

    def test_the_new_querys_own(self, url, admin):
        """What it has put aside when it read everything again is nowhere else."""
        forget_query("first", url, reason="a full refresh", truncate=True, quiet_seconds=0)
        commit(url, "second", [(1, "abc"), (2, "x" * 21)])
        admin.execute("""UPDATE pgonce.dead_letters SET row_data = jsonb_set(row_data, '{name}', '"ok"')""")
        replayed(url, "second")
        assert ids(admin) == [1, 2]
        refused(url)
