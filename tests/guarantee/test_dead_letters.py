"""Rows that cannot be written are put aside once, and all others are in the table, whichever way they come in."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f
from support.audit import what_is_wrong
from support.fixtures.thorough import by_way
from support.inbox import create_events, events
from support.query_runs import finish, rewind
from support.ways_in import TABLE_WAYS, Sink

pytestmark = pytest.mark.spark


def with_bad_copies(frame):
    """With every fifth row a copy that Postgres refuses, and one that cannot be encoded."""
    kinds = f.explode(f.array(f.lit(""), f.lit("refused"), f.lit("unfit"))).alias("bad")
    copies = frame.select("*", kinds).where("bad = '' OR id % 5 = 0")
    text = f.when(f.col("bad") == "unfit", f.concat(f.lit("a"), f.char(f.lit(0)))).otherwise(f.col("Größe"))
    key = f.when(f.col("bad") == "unfit", f.col("id") + 1000).when(f.col("bad") == "", f.col("id"))
    return copies.withColumn("Größe", text).withColumn("id", key).drop("bad")


@pytest.mark.parametrize("way", by_way(TABLE_WAYS, ("inline", "writer_upsert")))
def test_each_bad_row_is_put_aside_once(spark, way, url, checkpoint, inbox, observer):
    """A batch that comes again puts none aside, and the ledger counts them with the batch."""
    create_events(url, "events", keyed=True)
    sink = Sink(url, "events", checkpoint, {"dead_letters": True})
    rows = with_bad_copies(events(spark, inbox.folder))
    finish(way.append(rows, sink))
    inbox.add(20)
    finish(way.append(rows, sink))
    rewind(checkpoint)
    finish(way.append(rows, sink))
    assert what_is_wrong(observer, "events", checkpoint, inbox.rows) == []
    code = "NULL_KEYS" if way.upserts else "23502"
    letters = "SELECT code, column_name, count(*), count(DISTINCT row_data) FROM pgonce.dead_letters GROUP BY 1, 2"
    assert sorted(observer.execute(letters).fetchall()) == sorted([(code, "id", 6, 6), ("NUL_IN_TEXT", "Größe", 6, 6)])
    counted = "SELECT rows, counts -> 'dead_letters' FROM pgonce.batches ORDER BY batch_id"
    assert observer.execute(counted).fetchall() == [(10, 4), (20, 8)]
    unfit = "SELECT row_data -> 'Größe' FROM pgonce.dead_letters WHERE code = 'NUL_IN_TEXT' LIMIT 1"
    assert observer.execute(unfit).fetchone() == ({"base64": "YQA="},)
