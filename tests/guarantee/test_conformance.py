"""
One suite over every way in: whatever happens to a query, the table is its source, and the ledger its checkpoint.

Covers: sink.data_source.spark_interface, sink.foreach_batch.batch_writer,
sink.foreach_batch.transactional_batch, sink.identity.from_running_query.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.streaming.readwriter import DataStreamWriter
from support.audit import (
    left_behind,
    open_transactions,
    recorded,
    replays,
    waiting_commits,
    what_is_wrong,
    wrong_ledger,
    wrong_rows,
)
from support.fixtures.driver import wait_until
from support.fixtures.thorough import by_way
from support.inbox import Inbox, create_events, events
from support.messages import Messages
from support.patience import PATIENCE_SECONDS
from support.query_runs import assert_refused, finish, rewind, run_elsewhere
from support.ways_in import APPLYING_WAYS, DIVERTING_WAYS, ROUTED_WAYS, WAYS, InForeachBatch, Sink, of_this_spark

pytestmark = pytest.mark.spark

IN_FOREACH_BATCH = [way for way in WAYS if isinstance(way, InForeachBatch)]


# The others share their commit with these, and are left to `make test-all`.
IN_SHORT = ("inline", "staged", "received", "writer_upsert", "function")
EVERY_WAY = of_this_spark((*WAYS, *APPLYING_WAYS, *DIVERTING_WAYS, *ROUTED_WAYS))
# A replay shows a restart, too. A stop differs by who waits for the commit, and state by how the table is kept: Spark's
# JVM, the receiver, a function.
RESTARTED_IN_SHORT = ("staged", "writer_upsert")
STOPPED_IN_SHORT = ("inline", "received", "function")
STATEFUL_IN_SHORT = ("staged", "writer_upsert", "function")


@pytest.fixture(params=by_way(EVERY_WAY, IN_SHORT))
def way(request):
    """One of the ways in."""
    return request.param


@pytest.fixture
def sink(way, url, checkpoint):
    """An empty table for the rows, and a checkpoint to be."""
    create_events(url, "events", keyed=way.upserts)
    return Sink(url, "events", checkpoint)


class TestRestarts:
    @pytest.mark.parametrize("way", by_way(EVERY_WAY, RESTARTED_IN_SHORT), indirect=True)
    def test_goes_on_where_it_ended(self, spark, way, sink, inbox, observer):
        """Three starts, nested and oddly named columns, a batch without rows: all arrives, once."""
        for count in (20, 0):
            finish(way.append(events(spark, inbox.folder), sink))
            inbox.add(count)
        inbox.add(30)
        finish(way.append(events(spark, inbox.folder), sink))
        assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
        assert [batch.rows for batch in recorded(observer, sink.checkpoint)] == [10, 20, 0, 30]
        assert replays(observer, sink.checkpoint) == []

    def test_replay_is_skipped_and_counted(self, spark, way, sink, inbox, observer):
        """A batch that Spark runs again is not written again, and the ledger counts it; the next one is written."""
        inbox.add(20)
        for _ in range(2):
            finish(way.append(events(spark, inbox.folder), sink))
            assert rewind(sink.checkpoint) == 1
        inbox.add(30)
        finish(way.append(events(spark, inbox.folder), sink))
        assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
        assert replays(observer, sink.checkpoint) == [1, 1]

    @pytest.mark.parametrize("way", by_way(EVERY_WAY, STOPPED_IN_SHORT), indirect=True)
    def test_a_query_stopped_during_its_commit_goes_on(self, spark, way, sink, inbox, url, observer):
        """A query that is stopped while its commit waits for a lock goes on at the next start."""
        finish(way.append(events(spark, inbox.folder), sink))
        inbox.add(20)
        with psycopg.connect(url) as holder:
            holder.execute("LOCK TABLE events IN EXCLUSIVE MODE")
            query = way.append(events(spark, inbox.folder), sink).start()
            assert wait_until(lambda: waiting_commits(observer), PATIENCE_SECONDS)
            stopping = threading.Thread(target=query.stop)
            stopping.start()
            assert wait_until(lambda: not query.isActive, PATIENCE_SECONDS)
            # Spark interrupts the thread that waits for the commit right after it has said so.
            time.sleep(0.2)
            assert len(recorded(observer, sink.checkpoint)) == 1
        stopping.join(PATIENCE_SECONDS)
        assert not stopping.is_alive()
        assert wait_until(lambda: not open_transactions(observer), PATIENCE_SECONDS)
        skipped = len(recorded(observer, sink.checkpoint)) == 2 and not (Path(sink.checkpoint) / "commits/1").exists()
        inbox.add(30)
        finish(way.append(events(spark, inbox.folder), sink))
        assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
        assert replays(observer, sink.checkpoint) == ([1] if skipped else [])


@pytest.mark.parametrize("way", by_way(EVERY_WAY, STATEFUL_IN_SHORT), indirect=True)
class TestStatefulQueries:
    def test_an_aggregate_replaces_or_updates_its_table_once(self, spark, way, url, admin, checkpoint, inbox, observer):
        """An aggregate replaces the table, or updates it by key, also after a replay, which must run its frame."""
        admin.execute("CREATE TABLE totals (tag text PRIMARY KEY, events bigint)")
        sink = Sink(url, "totals", checkpoint)
        totals = events(spark, inbox.folder).groupBy(f.get("tags", 0).alias("tag")).agg(f.count("*").alias("events"))
        finish(way.totals(totals, sink, "tag"))
        rewind(checkpoint)
        inbox.add(25)
        finish(way.totals(totals, sink, "tag"))
        expected = Counter(tags[0] for _, _, _, tags, _ in inbox.rows)
        assert wrong_rows(observer, "totals", list(expected.items())) == []
        assert wrong_ledger(observer, checkpoint) == []
        assert replays(observer, checkpoint) == [0]

    def test_batch_without_data_that_has_rows(self, spark, way, url, admin, checkpoint, inbox, observer):
        """A window that closes in a batch of no new data is written once, though that batch starts where it ends."""
        admin.execute("CREATE TABLE windows (id bigint PRIMARY KEY, events bigint)")
        sink = Sink(url, "windows", checkpoint)
        windows = (
            events(spark, inbox.folder)
            .select(f.timestamp_seconds("id").alias("at"))
            .withWatermark("at", "0 seconds")
            .groupBy(f.window("at", "10 seconds"))
            .agg(f.count("*").alias("events"))
            .select(f.unix_seconds("window.start").alias("id"), "events")
        )
        inbox.add(20)
        finish(way.append(windows, sink))
        replayed = rewind(checkpoint)
        last = recorded(observer, checkpoint)[-1]
        assert (last.batch_id, last.start, last.rows) == (replayed, last.end, 2)
        inbox.add(15)
        finish(way.append(windows, sink))
        assert what_is_wrong(observer, "windows", checkpoint, [(0, 10), (10, 10), (20, 10), (30, 10)]) == []
        assert replays(observer, checkpoint) == [replayed]


@pytest.mark.kafka
def test_a_query_over_kafka(spark, kafka, topic, url, admin, checkpoint, observer):
    """Batches of records that Spark runs again are skipped, and the ledger ends where the topic does."""
    messages, sink = Messages(kafka.bootstrap_servers, topic(partitions=2)), Sink(url, "messages", checkpoint)
    admin.execute("CREATE TABLE messages (id bigint, text text)")
    for number in range(2):
        messages.send(11)
        finish(WAYS[0].append(messages.frame(spark, "earliest"), sink))
        assert rewind(checkpoint) == number
    finish(WAYS[0].append(messages.frame(spark, "earliest"), sink))
    assert what_is_wrong(observer, "messages", checkpoint, messages.rows) == []
    assert replays(observer, checkpoint) == [0, 1]
    assert observer.execute("SELECT sum(end_offset::text::int) FROM pgonce.current_offsets").fetchone() == (22,)


class TestSeveralWriters:
    def test_two_queries_into_one_table(self, spark, way, sink, inbox, tmp_path, observer):
        """Two queries that feed one table side by side arrive whole; that their files differ is a person's word."""
        others = Inbox(tmp_path / "others", first_id=1000)
        said = {"independent": True}
        sink = Sink(sink.url, "events", sink.checkpoint, said)
        other = Sink(sink.url, "events", str(tmp_path / "other_checkpoint"), said)
        for count in (10, 20):
            others.add(count)
            inbox.add(count)
            pairs = [(inbox, sink), (others, other)]
            streams = [way.append(events(spark, source.folder), into) for source, into in pairs]
            for query in [stream.trigger(availableNow=True).start() for stream in streams]:
                assert query.awaitTermination(PATIENCE_SECONDS)
        assert wrong_rows(observer, "events", inbox.rows + others.rows) == []
        assert wrong_ledger(observer, sink.checkpoint) == []
        assert wrong_ledger(observer, other.checkpoint) == []

    @pytest.mark.parametrize("way", IN_FOREACH_BATCH, ids=lambda way: way.name)
    def test_two_writers_of_one_query(self, spark, way, sink, inbox, url, observer):
        """Two writers under one name are refused before a row is lost or doubled; with a name each they write."""
        create_events(url, "copies", keyed=way.upserts)

        def write_both(second_name: str) -> DataStreamWriter:
            first = way.appending(Sink(url, "events", sink.checkpoint, {"sink_name": "one"}))
            second = way.appending(Sink(url, "copies", sink.checkpoint, {"sink_name": second_name}))

            def both(frame: DataFrame, batch_id: int) -> None:
                first(frame, batch_id)
                second(frame, batch_id)

            stream = events(spark, inbox.folder).writeStream.foreachBatch(both)
            return stream.option("checkpointLocation", sink.checkpoint)

        # Twice: at the second start the first writer finds a replay, and the other is no part of it.
        for _ in range(2):
            assert_refused(write_both("one"), "DUPLICATE")
            assert wrong_rows(observer, "events", inbox.rows) == []
            assert wrong_rows(observer, "copies", []) == []
        inbox.add(20)
        finish(write_both("two"))
        for table, name in (("events", "one"), ("copies", "two")):
            assert wrong_rows(observer, table, inbox.rows) == []
            assert wrong_ledger(observer, sink.checkpoint, sink_name=name) == []


class TestCheckpoints:
    def test_an_older_copy_of_the_checkpoint_is_refused(self, spark, way, sink, inbox, tmp_path, observer):
        """An older copy of the checkpoint is refused, though its offsets read the same and stand for other files."""
        checkpoint, older, newest = Path(sink.checkpoint), tmp_path / "older", tmp_path / "newest"
        finish(way.append(events(spark, inbox.folder), sink))
        checkpoint.rename(older)
        shutil.copytree(older, checkpoint)
        second_file = inbox.add(20)
        finish(way.append(events(spark, inbox.folder), sink))
        checkpoint.rename(newest)
        shutil.copytree(older, checkpoint)

        published = list(inbox.rows)
        hidden = second_file.rename(tmp_path / "second_file")
        inbox.add(30)
        assert_refused(way.append(events(spark, inbox.folder), sink), "CHANGED")
        run_elsewhere(events(spark, inbox.folder), sink.checkpoint)
        inbox.add(40)
        assert_refused(way.append(events(spark, inbox.folder), sink), "DISJOINT")
        assert wrong_rows(observer, "events", published) == []

        checkpoint.rename(tmp_path / "refused")
        newest.rename(checkpoint)
        hidden.rename(second_file)
        finish(way.append(events(spark, inbox.folder), sink))
        assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []

    def test_a_checkpoint_that_was_recreated_needs_a_person(self, spark, way, sink, inbox, tmp_path, observer):
        """A checkpoint that was lost and recreated would double every row: it needs a person's word."""
        finish(way.append(events(spark, inbox.folder), sink))
        Path(sink.checkpoint).rename(tmp_path / "lost")
        assert_refused(way.append(events(spark, inbox.folder), sink), "FOREIGN")
        assert wrong_rows(observer, "events", inbox.rows) == []
        Path(sink.checkpoint).rename(tmp_path / "refused")
        others = Inbox(tmp_path / "others", first_id=1000)
        others.add(20)
        independent = Sink(sink.url, "events", sink.checkpoint, {"independent": True})
        finish(way.append(events(spark, others.folder), independent))
        assert wrong_rows(observer, "events", inbox.rows + others.rows) == []
        assert wrong_ledger(observer, sink.checkpoint) == []

    def test_a_query_without_a_name_is_refused_at_another_path(self, spark, way, sink, inbox, tmp_path, observer):
        """Without a name, on a changed path: every row would be doubled; that the folders differ proves nothing."""
        finish(way.append(events(spark, inbox.folder), sink))
        moved, third = (Sink(sink.url, "events", str(tmp_path / name)) for name in ("moved", "third"))
        assert_refused(way.append(events(spark, inbox.folder), moved), "FOREIGN")
        assert wrong_rows(observer, "events", inbox.rows) == []
        others = Inbox(tmp_path / "others", first_id=1000)
        others.add(20)
        assert_refused(way.append(events(spark, others.folder), third), "FOREIGN")
        assert wrong_rows(observer, "events", inbox.rows) == []

    @pytest.mark.parametrize("written", [False, True], ids=["not_written", "written"])
    def test_taken_over_from_another_sink(self, spark, way, sink, inbox, observer, written):
        """A query with a past begins where its owner says: with the batch that is run again, or after it."""
        inbox.add(20)
        run_elsewhere(events(spark, inbox.folder), sink.checkpoint)
        assert rewind(sink.checkpoint) == 1
        assert_refused(way.append(events(spark, inbox.folder), sink), "UNKNOWN")
        inbox.add(30)
        adopted = Sink(sink.url, "events", sink.checkpoint, {"adopt_checkpoint": 2 if written else 1})
        finish(way.append(events(spark, inbox.folder), adopted))
        inbox.add(40)
        finish(way.append(events(spark, inbox.folder), adopted))
        expected = inbox.rows[30 if written else 10 :]
        assert what_is_wrong(observer, "events", sink.checkpoint, expected, adopted=1) == []

    @pytest.mark.parametrize("way", IN_FOREACH_BATCH, ids=lambda way: way.name)
    def test_called_for_some_batches_only(self, spark, way, sink, inbox, observer):
        """A writer that missed a batch refuses the next one."""
        write = way.appending(sink)
        inbox.add(20)
        inbox.add(30)
        frame = events(spark, inbox.folder)
        some = frame.writeStream.foreachBatch(lambda batch, n: None if n == 1 else write(batch, n))
        assert_refused(some.option("checkpointLocation", sink.checkpoint), "GAP")
        assert wrong_rows(observer, "events", inbox.rows[:10]) == []
        assert [batch.batch_id for batch in recorded(observer, sink.checkpoint)] == [0]


class TestLostConnections:
    @pytest.mark.parametrize("fault", ["cut_in_copy", "cut_before_commit", "cut_after_commit"])
    def test_a_line_that_is_cut_costs_a_second_try_and_no_row(self, spark, way, sink, inbox, proxy, observer, fault):
        """A line that is cut while the batch is written or committed costs a second try, and no row."""
        if fault == "cut_in_copy":
            proxy.cut_in_copy(after_bytes=100)
        else:
            getattr(proxy, fault)(touching="INSERT INTO pgonce.batches")
        through = Sink(proxy.url, "events", sink.checkpoint)
        inbox.add(20)
        finish(way.append(events(spark, inbox.folder), through))
        assert proxy.hits[fault] == 1
        assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
        assert replays(observer, sink.checkpoint) == []

    @pytest.mark.parametrize("way", of_this_spark(WAYS[1:2]), ids=lambda way: way.name)
    def test_staging_is_given_up(self, spark, way, sink, inbox, proxy, observer):
        """Who follows the advice to send rows inline after staging failed keeps nothing of what was staged."""
        proxy.cut_in_copy(after_bytes=100)
        through = Sink(proxy.url, "events", sink.checkpoint, {"retry_timeout": 0})
        assert_refused(way.append(events(spark, inbox.folder), through), "STAGING_FAILED")
        assert left_behind(observer) != []
        finish(WAYS[0].append(events(spark, inbox.folder), through))
        assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []

    def test_an_unknown_outcome_is_found_out_at_the_next_start(self, spark, way, sink, inbox, proxy, observer):
        """A query that must give up before it knows whether COMMIT arrived finds out at its next start."""
        proxy.cut_after_commit(touching="INSERT INTO pgonce.batches")
        hasty = Sink(proxy.url, "events", sink.checkpoint, {"retry_timeout": 0})
        assert_refused(way.append(events(spark, inbox.folder), hasty), "COMMIT_UNKNOWN")
        inbox.add(20)
        finish(way.append(events(spark, inbox.folder), hasty))
        assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
        assert replays(observer, sink.checkpoint) == [0]


class TestBehindAPooler:
    """PgBouncer in transaction mode, with fewer sessions than there are connections: they go from hand to hand."""

    @pytest.fixture
    def through(self, pgbouncer, database):
        """The url through the pooler."""
        return pgbouncer(default_pool_size="3").url(database)

    def test_goes_on_where_it_ended(self, spark, way, sink, inbox, observer, through):
        """Rows arrive once, over a replay too."""
        pooled = replace(sink, url=through)
        finish(way.append(events(spark, inbox.folder), pooled))
        assert rewind(sink.checkpoint) == 0
        inbox.add(20)
        finish(way.append(events(spark, inbox.folder), pooled))
        assert what_is_wrong(observer, "events", sink.checkpoint, inbox.rows) == []
        assert replays(observer, sink.checkpoint) == [0]
