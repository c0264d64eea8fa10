"""
A full refresh: a table is emptied as its query is forgotten, and a new query fills it again, once.

Covers: sink.foreach_batch.batch_writer, sink.data_source.spark_interface.
"""

from __future__ import annotations

import psycopg
import pytest
from support.audit import query_id, wrong_ledger, wrong_rows
from support.inbox import Inbox, create_events, events
from support.query_runs import assert_refused, finish, rewind
from support.ways_in import WAYS, Sink

from pgonce.recovery.forget import forget_query

pytestmark = pytest.mark.spark


def sink_of(way, url, directory, start):
    """The way's own table, and its checkpoint of this start."""
    return Sink(url, f"events_{way.name}", str(directory / start / way.name))


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_table_that_is_emptied_is_filled_again_once(spark, way, inbox, url, observer, tmp_path):
    """Only what the new query reads is there; its batch 0 is skipped when it runs again, and others are refused."""
    sinks = {start: sink_of(way, url, tmp_path, start) for start in ("first", "second", "third")}
    table = sinks["first"].table
    create_events(url, table, keyed=way.upserts)
    finish(way.append(events(spark, inbox.folder), sinks["first"]))
    inbox.add(20)
    finish(way.append(events(spark, inbox.folder), sinks["first"]))
    old = query_id(tmp_path / "first" / way.name)

    # Other files, so that rows of the old query would be seen if they stayed.
    again = Inbox(tmp_path / "again")
    again.add(7)
    if not way.in_foreach_batch:
        # In foreachBatch the other folder is proven to be another one, so that both queries might feed the table.
        assert_refused(way.append(events(spark, again.folder), sinks["second"]), "FOREIGN")
    assert wrong_rows(observer, table, inbox.rows) == []
    forget_query(old, url, reason="full refresh", truncate=True, quiet_seconds=0)
    assert wrong_rows(observer, table, []) == []
    if way.upserts:
        # That a row of the same id was written by the old query is no fault.
        with psycopg.connect(url) as connection:
            connection.execute(f"DELETE FROM {table}_writes".encode())
    finish(way.append(events(spark, again.folder), sinks["second"]))
    assert wrong_rows(observer, table, again.rows) == []
    assert rewind(sinks["second"].checkpoint) == 0
    again.add(5)
    finish(way.append(events(spark, again.folder), sinks["second"]))
    assert wrong_rows(observer, table, again.rows) == []
    assert wrong_ledger(observer, sinks["second"].checkpoint) == []
    assert_refused(way.append(events(spark, again.folder), sinks["third"]), "FOREIGN")
    inbox.add(3)
    assert_refused(way.append(events(spark, inbox.folder), sinks["first"]), "FENCED")
    assert wrong_rows(observer, table, again.rows) == []
