"""
A full refresh: a new query replaces the table's rows with its batch 0, once, whatever happens meanwhile.

Covers: sink.foreach_batch.batch_writer, sink.data_source.spark_interface.
"""

from __future__ import annotations

import json

import psycopg
import pytest
from support import starting_over_job
from support.audit import query_id, wrong_ledger, wrong_rows
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings
from support.inbox import Inbox, create_events, events
from support.query_runs import assert_refused, finish, rewind
from support.starting_over_job import sink_of, ways

pytestmark = pytest.mark.spark

_GATE = 4712


def forget_writes(url, way, table):
    """The rows of the old query are to go: that a row of the same id was written by it is no fault."""
    if way.upserts:
        with psycopg.connect(url) as connection:
            connection.execute(f"DELETE FROM {table}_writes".encode())


@pytest.mark.parametrize("way", ways(), ids=lambda way: way.name)
def test_a_full_refresh(spark, way, inbox, url, observer, tmp_path):
    """Only what the new query reads is there; a replay of its batch 0 deletes nothing, and nor does the next query."""
    sinks = {start: sink_of(way, url, tmp_path, start) for start in ("first", "second", "third")}
    table = sinks["first"].table
    create_events(url, table, keyed=way.upserts)
    finish(way.append(events(spark, inbox.folder), sinks["first"]))
    inbox.add(20)
    finish(way.append(events(spark, inbox.folder), sinks["first"]))
    before = list(inbox.rows)
    old = query_id(tmp_path / "first" / way.name)

    # Other files, so that rows of the old query would be seen if they stayed.
    again = Inbox(tmp_path / "again")
    again.add(7)
    if not way.in_foreach_batch:
        # In foreachBatch the other folder is proven to be another one, so that both queries might feed the table.
        assert_refused(way.append(events(spark, again.folder), sinks["second"]), "FOREIGN")
    assert wrong_rows(observer, table, before) == []
    forget_writes(url, way, table)
    over = {start: sink_of(way, url, tmp_path, start, old) for start in sinks}
    finish(way.append(events(spark, again.folder), over["second"]))
    assert wrong_rows(observer, table, again.rows) == []
    assert rewind(over["second"].checkpoint) == 0
    again.add(5)
    finish(way.append(events(spark, again.folder), over["second"]))
    assert wrong_rows(observer, table, again.rows) == []
    assert wrong_ledger(observer, over["second"].checkpoint) == []
    assert_refused(way.append(events(spark, again.folder), over["third"]), "FOREIGN")
    inbox.add(3)
    assert_refused(way.append(events(spark, inbox.folder), sinks["first"]), "FENCED")
    assert wrong_rows(observer, table, again.rows) == []


@pytest.mark.slow
def test_a_driver_that_is_killed_in_the_middle(spark, inbox, url, observer, tmp_path, start_driver):
    """All old rows are there after it, and all new ones, and no other, once the query was started again."""
    for way in ways():
        create_events(url, sink_of(way, url, tmp_path, "first").table, keyed=way.upserts)
        finish(way.append(events(spark, inbox.folder), sink_of(way, url, tmp_path, "first")))
    before = list(inbox.rows)
    replaces = {way.name: query_id(tmp_path / "first" / way.name) for way in ways()}
    again = Inbox(tmp_path / "again")
    again.add(7)
    settings = spark_settings(tmp_path, kafka=False) | {"spark.master": f"local[{len(ways())}]"}
    job = {"url": url, "inbox": str(again.folder), "directory": str(tmp_path), "settings": settings}
    with psycopg.connect(url, autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({_GATE})")
        holder.execute(
            "CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN PERFORM pg_advisory_xact_lock_shared({_GATE}); RETURN NULL; END'"
        )
        # At the targets, because the server commits what it has, once the record and COMMIT have arrived.
        for way in ways():
            holder.execute(
                f"CREATE TRIGGER gate AFTER INSERT ON events_{way.name} "
                "FOR EACH STATEMENT EXECUTE FUNCTION wait_at_gate()"
            )
        driver = start_driver(
            starting_over_job.__file__, json.dumps({**job, "replaces": replaces}), env=with_tests_on_path()
        )
        # Rows are deleted and written, and nothing is committed.
        waiting = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {_GATE} AND NOT granted"
        driver.wait_for(lambda: observer.execute(waiting).fetchone() == (len(ways()),), "all batches to wait")
        driver.sigkill()
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute("DROP FUNCTION wait_at_gate CASCADE")
    for way in ways():
        over = sink_of(way, url, tmp_path, "second", replaces[way.name])
        assert wrong_rows(observer, over.table, before) == []
        forget_writes(url, way, over.table)
        finish(way.append(events(spark, again.folder), over))
        assert wrong_rows(observer, over.table, again.rows) == []
    for way in ways():
        assert wrong_ledger(observer, sink_of(way, url, tmp_path, "second").checkpoint) == []
