"""
A full refresh: a new query replaces the table's rows with its batch 0, once, whatever happens meanwhile.

Covers: sink.foreach_batch.batch_writer, sink.data_source.spark_interface.
"""

from __future__ import annotations

import psycopg
import pytest
from support import queries_job
from support.audit import query_id, wrong_ledger, wrong_rows
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings
from support.gate import gate
from support.inbox import Inbox, create_events, events
from support.query_runs import assert_refused, finish, rewind
from support.ways_in import WAYS as ALL_WAYS
from support.ways_in import Sink

pytestmark = pytest.mark.spark

# Those that write to one table can start over.
WAYS = [way for way in ALL_WAYS if "function" not in way.name]


def sink_of(way, url, directory, start, replaces=None):
    """The way's own table, and its checkpoint of this start; with ``replaces`` it starts over."""
    over = {"start_over": "truncate", "replaces": replaces} if replaces else {}
    return Sink(url, f"events_{way.name}", str(directory / start / way.name), over)


def forget_writes(url, way, table):
    """The rows of the old query are to go: that a row of the same id was written by it is no fault."""
    if way.upserts:
        with psycopg.connect(url) as connection:
            connection.execute(f"DELETE FROM {table}_writes".encode())


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
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
    for way in WAYS:
        create_events(url, sink_of(way, url, tmp_path, "first").table, keyed=way.upserts)
        finish(way.append(events(spark, inbox.folder), sink_of(way, url, tmp_path, "first")))
    before = list(inbox.rows)
    replaces = {way.name: query_id(tmp_path / "first" / way.name) for way in WAYS}
    again = Inbox(tmp_path / "again")
    again.add(7)
    settings = spark_settings(tmp_path, kafka=False) | {"spark.master": f"local[{len(WAYS)}]"}
    over = {way.name: sink_of(way, url, tmp_path, "second", replaces[way.name]) for way in WAYS}
    # At the targets, because the server commits what it has, once the record and COMMIT have arrived.
    with gate(url, *(f"events_{way.name}" for way in WAYS)) as waiting:
        job = queries_job.arguments(again.folder, over, settings)
        driver = start_driver(queries_job.__file__, job, env=with_tests_on_path())
        # Rows are deleted and written, and nothing is committed.
        driver.wait_for(lambda: observer.execute(waiting).fetchone() == (len(WAYS),), "all batches to wait")
        driver.sigkill()
    for way in WAYS:
        sink = over[way.name]
        assert wrong_rows(observer, sink.table, before) == []
        forget_writes(url, way, sink.table)
        finish(way.append(events(spark, again.folder), sink))
        assert wrong_rows(observer, sink.table, again.rows) == []
    for sink in over.values():
        assert wrong_ledger(observer, sink.checkpoint) == []
