"""
A copy that follows the change feed of a table, version by version, ends as that table, whatever comes again.

Debezium's feed, whose events come again, late and after deletes, is followed by examples/cdc.py, which test_examples.py
runs. Covers: sink.changes, sink.writing.by_key.apply.
"""

from __future__ import annotations

import json
import os
from decimal import Decimal
from itertools import groupby

import psycopg
import pytest
from change_feed import COLUMNS, ChangeFeed, Row
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.audit import replays, wrong_ledger
from support.query_runs import finish, rewind
from support.ways_in import DataSource, Sink

from pgonce import transactional_batch

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FEED = ChangeFeed(3, keys=6, events=400, replays=6, replayed=30, large_notes=0.5, again=0.7)
SCHEMA = (
    "id BIGINT, customer STRING, amount DECIMAL(12, 2), note STRING, updated_at TIMESTAMP, "
    "_change_type STRING, _commit_version BIGINT, _commit_timestamp TIMESTAMP"
)
HOW = {"change_feed": "spark", "order_by": "_commit_version"}
VERSIONS_OF_A_FILE = 20


def by_data_source(frame, sink) -> DataStreamWriter:
    """Rows are staged."""
    settings = {**sink.settings, "mode": "apply"}
    way = DataSource("staged", inline_bytes=0, receiver="off")
    return way.append(frame, Sink(sink.url, sink.table, sink.checkpoint, settings))


def by_function(frame, sink) -> DataStreamWriter:
    """A function applies them."""
    work = transactional_batch(sink.url, name="copy")(lambda batch, tx: tx.apply(batch, sink.table, **sink.settings))
    return frame.writeStream.foreachBatch(work).option("checkpointLocation", sink.checkpoint)


def write_files(folder, versions, first):
    """Some whole versions in each file, which Spark reads in the order of their times; how many changes they are."""
    for number in range(0, len(versions), VERSIONS_OF_A_FILE):
        rows = [row for version in versions[number : number + VERSIONS_OF_A_FILE] for row in version]
        path = folder / f"{first + number}.json"
        path.write_text("\n".join(json.dumps(row, default=_as_text) for row in rows))
        os.utime(path, (1_700_000_000 + first + number,) * 2)
    # The image before an update is no change.
    return sum(row["_change_type"] != "update_preimage" for version in versions for row in version)


def _as_text(value):
    return str(value) if isinstance(value, Decimal) else value.isoformat()


@pytest.mark.parametrize("only_newer", [True, False], ids=["only newer", "in order"])
@pytest.mark.parametrize("updates", [True, False], ids=["pairs of images", "a delete and an insert"])
@pytest.mark.parametrize("way", [by_data_source, by_function])
def test_versions_come_to_the_rows_of_the_source(spark, url, observer, tmp_path, checkpoint, way, updates, only_newer):
    """Both forms of an update, many versions in a batch, and a batch that is run again come to the source's rows."""
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TABLE copy ({COLUMNS}, _commit_version bigint)".encode())
    folder = tmp_path / "changes"
    folder.mkdir()
    sink = Sink(url, "copy", checkpoint, {**HOW, "only_newer": only_newer})
    changes = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", "1").json(str(folder))
    rows = groupby(FEED.change_rows(updates=updates), key=lambda row: row["_commit_version"])
    versions, sent, again = [list(of_version) for _, of_version in rows], 0, []
    half = len(versions) // 2
    for first, part in ((0, versions[:half]), (half, versions[half:])):
        sent += write_files(folder, part, first)
        finish(way(changes, sink))
        again.append(rewind(checkpoint))
    finish(way(changes, sink))
    columns = ", ".join(Row._fields)
    found = observer.execute(f"SELECT {columns} FROM copy".encode()).fetchall()
    assert sorted(found) == sorted(FEED.final_state().values())
    batches = observer.execute("SELECT rows, counts FROM pgonce.batches").fetchall()
    assert sum(of_batch for of_batch, _ in batches) == sent
    assert all(sum(counts.values()) == of_batch for of_batch, counts in batches if of_batch)
    assert replays(observer, checkpoint) == again
    assert wrong_ledger(observer, checkpoint) == []
