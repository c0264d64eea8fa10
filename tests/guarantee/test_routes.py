"""
One stream into several tables: whatever comes again, each table has its rows once, and all of them stand together.

Covers: sink.writing.routes, sink.foreach_batch.transactional_batch.
"""

from __future__ import annotations

import json

import pytest
from pyspark.sql import functions as f
from support.audit import recorded, replays, wrong_ledger
from support.inbox import Inbox, events
from support.query_runs import finish, rewind

from pgonce import PostgresBatchWriter, transactional_batch

pytestmark = pytest.mark.spark

TABLES = {
    "even": {"mode": "upsert", "keys": ["id"]},
    "odd": {"table": "odd_numbers"},
    "gone": {"mode": "apply", "keys": "id", "deleteWhen": "is_gone"},
}
WAYS = ("inline", "staged", "received", "writer", "function")


def numbers(spark, folder):
    """The events, each with the table that it goes to: even, odd, and for every fifth a row that is deleted."""
    frame = events(spark, folder).select("id", (f.col("id") * 2).alias("twice"))
    gone = f.col("id") % 5 == 0
    kind = f.when(gone, "gone").when(f.col("id") % 2 == 0, "even").otherwise("odd")
    # Only rows of one table say whether they delete.
    return frame.withColumn("kind", kind).withColumn("is_gone", f.when(gone, f.col("id") > 10))


def written(way, frame, url, checkpoint, **given):
    """The query, by one of the ways in."""
    if way == "writer":
        writer = PostgresBatchWriter(url, route="kind", tables=TABLES, **given)
        return frame.writeStream.foreachBatch(writer).option("checkpointLocation", checkpoint)
    if way == "function":
        work = transactional_batch(url, name="numbers", **given)(lambda batch, tx: tx.route(batch, "kind", TABLES))
        return frame.writeStream.foreachBatch(work).option("checkpointLocation", checkpoint)
    options = {"url": url, "checkpointLocation": checkpoint, "route": "kind", "tables": json.dumps(TABLES)}
    if way != "inline":
        options["inlineBytes"] = "0"
        options["receiver"] = "auto" if way == "received" else "off"
    return frame.writeStream.format("pgonce").options(**options)


def wrong_tables(observer, count):
    """What is not as it should be after events 0 to ``count``."""
    ids = range(count)
    expected = {
        "even": [n for n in ids if n % 2 == 0 and n % 5],
        "odd_numbers": [n for n in ids if n % 2 and n % 5],
        "gone": [n for n in ids if n % 5 == 0 and n <= 10],
    }
    found = {
        table: [id_ for (id_,) in observer.execute(f"SELECT id FROM {table} ORDER BY id").fetchall()]
        for table in expected
    }
    return [f"{table}: {found[table]}" for table in expected if found[table] != expected[table]]


@pytest.fixture
def tables(admin):
    """The tables; those by key have a key."""
    for name in ("even", "gone"):
        admin.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, twice bigint)")
    admin.execute("CREATE TABLE odd_numbers (id bigint, twice bigint, kind text)")


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_that_comes_again_is_in_no_table_twice(spark, tables, url, checkpoint, observer, tmp_path, way):
    """The driver dies between COMMIT and commits/N, and the next one skips the batch for all tables at once."""
    inbox = Inbox(tmp_path / "inbox")
    for count in (20, 30):
        inbox.add(count)
        finish(written(way, numbers(spark, inbox.folder), url, checkpoint))
    again = rewind(checkpoint)
    inbox.add(10)
    finish(written(way, numbers(spark, inbox.folder), url, checkpoint))
    assert wrong_tables(observer, 60) == []
    assert wrong_ledger(observer, checkpoint) == []
    assert replays(observer, checkpoint) == [again]
    found = observer.execute("SELECT rows, tables FROM pgonce.batches ORDER BY batch_id").fetchall()
    assert [rows for rows, _ in found] == [20, 30, 10]
    assert all(sum(of_each.values()) == rows for rows, of_each in found)
    assert len(recorded(observer, checkpoint)) == 3


@pytest.mark.parametrize("way", ["inline", "staged", "writer", "function"])
def test_a_change_feed_finds_its_tables(spark, url, admin, checkpoint, tmp_path, way):
    """Each change goes into the table of its row; the image before an update into none."""
    tables = {"even": {}, "odd": {"table": "odd_numbers", "deletes": "soft:gone"}}
    for name in ("even", "odd_numbers"):
        admin.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, version bigint, gone boolean)")
    how = {"mode": "apply", "change_feed": "delta", "order_by": "version"}
    inbox = Inbox(tmp_path / "inbox")
    # Every row is inserted and updated, and every fifth is deleted.
    kinds = enumerate(["insert", "update_preimage", "update_postimage", "delete"])
    versions = f.array(*(f.struct(f.lit(kind).alias("_change_type"), f.lit(n).alias("version")) for n, kind in kinds))
    frame = events(spark, inbox.folder).select("id", f.explode(versions).alias("change")).select("id", "change.*")
    frame = frame.where("_change_type != 'delete' OR id % 5 = 0")
    frame = frame.withColumn("kind", f.when(f.col("id") % 2 == 0, "even").otherwise("odd"))
    if way == "writer":
        query = frame.writeStream.foreachBatch(PostgresBatchWriter(url, route="kind", tables=tables, **how))
    elif way == "function":
        work = transactional_batch(url, name="changes")(lambda batch, tx: tx.route(batch, "kind", tables, **how))
        query = frame.writeStream.foreachBatch(work)
    else:
        options = {"mode": "apply", "changeFeed": "delta", "orderBy": "version", "tables": json.dumps(tables)}
        query = frame.writeStream.format("pgonce").options(**options, url=url, route="kind")
        query = query.options(inlineBytes="0", receiver="off") if way == "staged" else query
    query = query.option("checkpointLocation", checkpoint)
    for count in (7, 13):
        inbox.add(count)
        finish(query)
    found = {name: admin.execute(f"SELECT * FROM {name} ORDER BY id").fetchall() for name in ("even", "odd_numbers")}
    assert found["even"] == [(n, 2, None) for n in range(20) if n % 2 == 0 and n % 5]
    assert found["odd_numbers"] == [(n, 2, n % 5 == 0) for n in range(20) if n % 2]
