"""
Exactly-once by source position: a batch that overlaps what is stored loses those of its rows, and no others.

Covers: sink.options.position_columns, sink.positions.
"""

from __future__ import annotations

import shutil

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import functions as f
from support.audit import query_id
from support.fixtures.driver import wait_until
from support.messages import POSITIONS, Messages
from support.query_runs import assert_refused, finish
from support.ways_in import WAYS, Sink

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

APPENDING = [way for way in WAYS if not way.upserts]
BY_POSITION = {"position_columns": ",".join(POSITIONS)}


@pytest.fixture
def target(url, admin, tmp_path):
    """Where a way in writes: ``target(checkpoint)``; the table takes the positions too."""
    admin.execute('CREATE TABLE messages (id bigint, text text, topic text, partition int, "offset" bigint)')

    return lambda checkpoint: Sink(url, "messages", str(tmp_path / checkpoint), BY_POSITION)


def stored(observer):
    """Rows of the table as they were sent."""
    return observer.execute("SELECT id, text FROM messages ORDER BY 1").fetchall()


def put_back_the_older_copy(directory):
    """Let the checkpoint be what it was when it was copied."""
    shutil.rmtree(directory / "checkpoint")
    shutil.copytree(directory / "older", directory / "checkpoint")


def newest(observer, checkpoint):
    """The newest record: generation, rows, dropped rows."""
    return observer.execute(
        "SELECT b.generation, b.rows, b.dropped_rows FROM pgonce.batches AS b JOIN pgonce.writers AS w "
        "ON (w.writer_id, w.generation, w.last_batch_id) = (b.writer_id, b.generation, b.batch_id) WHERE query_id = %s",
        [query_id(checkpoint)],
    ).fetchone()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_an_older_copy_of_the_checkpoint_goes_on(spark, messages, way, target, url, admin, observer, tmp_path):
    """A batch id that comes again over a wider range publishes what is new in it, and counts what is not."""
    if way.upserts:
        admin.execute("ALTER TABLE messages ADD PRIMARY KEY (id)")

    def run():
        finish(way.append(messages.frame(spark, "earliest", positions=True), target("checkpoint")))

    run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    messages.send(6)
    run()
    messages.send(4)
    put_back_the_older_copy(tmp_path)
    run()
    assert stored(observer) == sorted(messages.rows)
    assert newest(observer, tmp_path / "checkpoint") == (1, 4, 6)
    messages.send(3)
    run()
    assert stored(observer) == sorted(messages.rows)
    assert newest(observer, tmp_path / "checkpoint") == (1, 3, 0)


@pytest.mark.parametrize("way", APPENDING, ids=lambda way: way.name)
def test_many_rows_of_a_message_and_many_tasks_of_a_partition(spark, messages, way, target, observer, tmp_path):
    """A message that becomes three rows, and one that becomes none, are kept or dropped whole, in whichever task."""

    def run():
        frame = messages.frame(spark, "earliest", positions=True, minPartitions="5").where("offset % 3 <> 1")
        finish(way.append(frame.withColumn("text", f.explode(f.array(*[f.col("text")] * 3))), target("checkpoint")))

    run()
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
    messages.send(9)
    run()
    messages.send(7)
    put_back_the_older_copy(tmp_path)
    run()
    assert stored(observer) == sorted(row for row in messages.rows if row[0] % 1000 % 3 != 1 for _ in range(3))


@pytest.mark.parametrize("way", APPENDING, ids=lambda way: way.name)
def test_a_topic_that_goes_back_is_refused(spark, kafka, messages, way, target, observer):
    """A topic recreated with fewer messages ends before it starts."""
    frame = messages.frame(spark, "earliest", positions=True, failOnDataLoss="false")
    finish(way.append(frame, target("checkpoint")))
    published = sorted(messages.rows)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.delete_topics([messages.topic], operation_timeout=10)[messages.topic].result(timeout=30)
    assert wait_until(lambda: messages.topic not in admin.list_topics(timeout=10).topics)
    recreated = NewTopic(messages.topic, num_partitions=2, replication_factor=1)
    admin.create_topics([recreated], operation_timeout=10)[messages.topic].result(timeout=30)
    Messages(kafka.bootstrap_servers, messages.topic).send(4)
    assert_refused(way.append(frame, target("checkpoint")), "BACKWARD")
    assert stored(observer) == published


# What is done to a frame whose rows carry their positions, and why nothing of it can be written.
REFUSED = {
    # Nothing tells whether such a row is stored.
    "a row without": (lambda rows: rows.withColumn("offset", f.expr("if(id = 3, null, offset)")), "POSITION_COLUMNS"),
    # Before any row moves.
    "a column less": (lambda rows: rows.drop("offset"), "POSITION_COLUMNS"),
    "another type": (lambda rows: rows.withColumn("offset", f.col("offset").cast("string")), "POSITION_COLUMNS"),
    # Columns of the right types that hold something else would let rows be dropped later.
    "another offset": (lambda rows: rows.withColumn("offset", f.col("offset") + 1000), "POSITION_COLUMNS"),
    "another topic": (lambda rows: rows.withColumn("topic", f.lit("another")), "POSITION_COLUMNS"),
    "another partition": (lambda rows: rows.withColumn("partition", f.col("partition") + 7), "POSITION_COLUMNS"),
    # Rows of a query that keeps state come from more than one record.
    "state": (lambda rows: rows.dropDuplicates(["text"]), "NOT_BY_POSITION"),
}


@pytest.mark.parametrize("way", APPENDING, ids=lambda way: way.name)
@pytest.mark.parametrize(("changed", "code"), REFUSED.values(), ids=REFUSED)
def test_rows_whose_positions_are_not_their_own_are_refused(spark, messages, way, changed, code, target, observer):
    """A position that is missing, of another type or of elsewhere fails the first batch, and nothing is written."""
    frame = changed(messages.frame(spark, "earliest", positions=True))
    assert_refused(way.append(frame, target("checkpoint")), code)
    assert stored(observer) == []
