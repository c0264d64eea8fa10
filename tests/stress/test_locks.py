"""Somebody else's lock holds up a running query: the log says whose, while it waits, and so does the error."""

from __future__ import annotations

from contextlib import contextmanager

import psycopg
import pytest
from psycopg import sql
from support.audit import what_is_wrong

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_WAYS = ("inline", "staged", "writer_append", "function")


@contextmanager
def idle_in_transaction(url, tables):
    """A report that locked the tables, and whose user went to lunch."""
    with psycopg.connect(url, application_name="nightly report") as holder:
        for table in tables:
            holder.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(sql.Identifier(table)))
        yield holder.info.backend_pid
        holder.rollback()


def test_a_query_waits_for_a_lock_and_names_its_holder(remote, url, inbox, observer):
    """A session that holds the table idle in a transaction is named by pid, application, state and query."""
    patient = [remote.query(url, way, "waiting", inbox, lock_timeout=1, retry_timeout=60) for way in _WAYS[::2]]
    hasty = [remote.query(url, way, "giving_up", inbox, lock_timeout=1, retry_timeout=2) for way in _WAYS[1::2]]
    for query in [*patient, *hasty]:
        query.start()
    for query in [*patient, *hasty]:
        query.wait_for_all_rows()
    began = len(remote.output())
    with idle_in_transaction(url, [query.table for query in [*patient, *hasty]]) as pid:
        inbox.add(20)
        who = f"pid {pid}, application 'nightly report', user "
        for query in hasty:
            error = query.error()
            assert "[LOCKED]" in error
            assert who in error
            assert "idle in transaction since" in error
            assert "query: LOCK TABLE" in error
        # Every commit that waits has its own line; which one it is stands in the line of the try.
        remote.wait_for(
            lambda: remote.output()[began:].count(f"waiting for a lock held by: {who}") >= len(patient), "they said so"
        )
        for query in patient:
            assert f"batch 1 of query {query.query_id}: trying again" in remote.output()
    for query in patient:
        query.wait_for_all_rows()
    for query in hasty:
        query.start(retry_timeout=60)
        query.wait_for_all_rows()
    for query in [*patient, *hasty]:
        query.stop()
        assert what_is_wrong(observer, query.table, query.checkpoint, inbox.rows) == [], query.name
