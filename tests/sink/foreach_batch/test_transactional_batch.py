"""A transactional function may make temporary tables for steps in between, and write into them as into any others."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f
from support.audit import wrong_ledger, wrong_rows
from support.inbox import Inbox, create_events, events
from support.query_runs import assert_refused, finish

from pgonce import transactional_batch

pytestmark = pytest.mark.spark

MADE = "CREATE TEMPORARY TABLE arrived (LIKE public.events INCLUDING ALL)"
MOVED = "INSERT INTO events SELECT * FROM arrived"


def changes(batch):
    """The batch's rows as changes that only write."""
    return batch.withColumn("gone", f.lit(False))


WAYS = {
    "append": lambda tx, batch, table: tx.append(batch, table),
    "append of another type": lambda tx, batch, table: tx.append(batch.withColumn("id", f.expr("int(id)")), table),
    "upsert": lambda tx, batch, table: tx.upsert(batch, table, ["id"]),
    "only newer": lambda tx, batch, table: tx.upsert(batch, table, order_by="id", only_newer=True),
    "apply": lambda tx, batch, table: tx.apply(changes(batch), table, delete_when="gone"),
    "replace": lambda tx, batch, table: tx.replace(batch, table),
    "delete": lambda tx, batch, table: (tx.append(batch, table), tx.delete(batch.where("id < 0"), table))[0],
}


class Bench:
    """A query that a function writes, over an inbox with a file a batch."""

    def __init__(self, spark, url, checkpoint, folder):
        self.inbox, self.url, self.checkpoint = Inbox(folder), url, checkpoint
        self._rows = events(spark, folder)
        create_events(url, "events", keyed=True)
        self.inbox.add(10)
        self.inbox.add(5)

    def stream(self, function):
        """The query that the function writes."""
        write = transactional_batch(self.url, name="a function")(function)
        return self._rows.writeStream.foreachBatch(write).option("checkpointLocation", self.checkpoint)

    def what_is_wrong(self, observer):
        """The table against the inbox, and the ledger against the checkpoint."""
        return [*wrong_rows(observer, "events", self.inbox.rows), *wrong_ledger(observer, self.checkpoint)]


@pytest.fixture
def bench(spark, url, checkpoint, tmp_path):
    """The query has two batches to write."""
    return Bench(spark, url, checkpoint, tmp_path / "inbox")


# `make test` has the one that deletes, too.
IN_SHORT = ("delete",)


@pytest.mark.parametrize(
    ("way", "then"),
    [
        *(pytest.param(way, "", marks=() if way in IN_SHORT else pytest.mark.thorough) for way in WAYS),
        ("append", " ON COMMIT DROP"),
    ],
)
def test_rows_go_through_a_table_of_the_functions_own(bench, way, then, observer):
    """However they are written, and though the table may stay in the session, which the next batch gets again."""

    def function(batch, tx):
        tx.execute(MADE + then)
        assert WAYS[way](tx, batch, "arrived") == batch.count()
        assert tx.execute(MOVED).rowcount == batch.count()

    finish(bench.stream(function))
    assert bench.what_is_wrong(observer) == []
    # What went away with the batches is not what they published.
    recorded = observer.execute("SELECT rows, counts, tables FROM pgonce.batches").fetchall()
    assert recorded == [(0, None, None)] * 2
    assert observer.execute("SELECT targets FROM pgonce.writers").fetchone() == (None,)


def test_a_table_for_one_batch_may_be_created_from_the_frame(bench, observer):
    """In pg_temp, so that it needs no CREATE TABLE of the user's; the permanent table of that name is another one."""

    def function(batch, tx):
        tx.append(batch, "pg_temp.events", create_table=True)
        tx.execute("INSERT INTO public.events SELECT * FROM pg_temp.events")

    finish(bench.stream(function))
    assert bench.what_is_wrong(observer) == []


def test_what_an_earlier_batch_left_does_not_take_the_rows_of_the_next(bench, observer):
    """A temporary table comes before a permanent one of the same name, and would take its rows with it."""

    def function(batch, tx):
        tx.append(batch, "events")
        tx.execute("CREATE TEMPORARY TABLE events (id bigint)")

    finish(bench.stream(function))
    assert bench.what_is_wrong(observer) == []


def test_a_delete_from_a_temporary_table_is_not_remembered(bench, observer):
    """It would be remembered for days, of a table that goes away; that is said, and nothing is written."""

    def function(batch, tx):
        tx.execute(MADE)
        tx.apply(changes(batch), "arrived", delete_when="gone", order_by="id", only_newer=True)

    assert_refused(bench.stream(function), "TARGET_NOT_DURABLE")
    assert observer.execute("SELECT count(*) FROM events").fetchone() == (0,)
