"""A query starts again with more columns than its table has, whichever way its rows come in."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f
from support.audit import what_is_wrong
from support.inbox import create_events, events
from support.query_runs import finish
from support.ways_in import TABLE_WAYS, Sink

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("evolution", ["addColumns", "ignoreExtra"])
@pytest.mark.parametrize("way", TABLE_WAYS, ids=lambda way: way.name)
def test_a_query_comes_back_with_new_columns(spark, way, url, checkpoint, inbox, observer, evolution):
    """They are added with the first batch that brings them, or left out; every row is there once."""
    create_events(url, "events", keyed=way.upserts)
    sink = Sink(url, "events", checkpoint, {"schema_evolution": evolution})
    rows = events(spark, inbox.folder)
    finish(way.append(rows, sink))
    inbox.add(20)
    more = rows.withColumn("Origin", f.lit("a stream")).withColumn("cost", f.lit(1.5).cast("decimal(9,2)"))
    finish(way.append(more, sink))
    inbox.add(5)
    finish(way.append(rows, sink))
    added = {"Origin", "cost"} & {c.name for c in observer.execute("SELECT * FROM events LIMIT 0").description}
    assert observer.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchone() == (35, 35)
    changes = observer.execute("SELECT batch_id, change FROM pgonce.target_changes").fetchall()
    if evolution == "addColumns":
        assert added == {"Origin", "cost"}
        counts = 'SELECT count("Origin"), sum(cost)::text FROM events'
        assert observer.execute(counts).fetchone() == (20, "30.00")
        assert changes == [(1, "public.events: column Origin text was added; column cost numeric(9,2) was added.")]
    else:
        assert added == set()
        assert [number for number, _ in changes] == [1]
        assert what_is_wrong(observer, "events", checkpoint, inbox.rows) == []
