"""Checkpoints as the installed Spark writes them: the reader must find in each what the query really did."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamWriter, StreamingQuery
from support.fixtures.driver import wait_until
from support.messages import send_to
from support.patience import PATIENCE_SECONDS

from pgonce.offsets_store.checkpoint.log_entries import OffsetLogEntry
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.offsets import goes_back, kafka_partitions, says_which_rows

pytestmark = pytest.mark.spark


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    """A folder of JSON files with one file in it."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    add_file(folder, "a")
    return folder


def add_file(folder: Path, name: str) -> None:
    """Add one file of one row."""
    (folder / f"{name}.json").write_text('{"a":1}\n')


def files(spark: SparkSession, folder: Path) -> DataFrame:
    """Stream a folder's files."""
    return spark.readStream.schema("a int").json(str(folder))


@contextmanager
def settings(spark: SparkSession, **values: str) -> Iterator[None]:
    """Set spark.sql.streaming settings for a while; two underscores stand for a dot."""
    names = {f"spark.sql.streaming.{name.replace('__', '.')}": value for name, value in values.items()}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


def writer(frame: DataFrame, checkpoint: str, mode: str = "append") -> DataStreamWriter:
    """Write to nowhere, with this checkpoint."""
    return frame.writeStream.format("noop").outputMode(mode).option("checkpointLocation", checkpoint)


def run(stream: DataStreamWriter) -> StreamingQuery:
    """Run a query over all there is, to its end."""
    query = stream.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def assert_says_what_the_query_said(checkpoint: Checkpoint, query: StreamingQuery) -> None:
    """Compare ids, numbers and newest entry with the query that just ended."""
    last = query.lastProgress["batchId"]
    assert checkpoint.query_id() == str(query.id)
    assert checkpoint.batch_ids() == (list(range(last + 1)), list(range(last + 1)))
    assert checkpoint.is_committed(last)
    assert not checkpoint.is_committed(last + 1)
    assert checkpoint.newest_offset_entry() == OffsetLogEntry(last, checkpoint.offset_log(last).sha256)


def test_each_batch_of_a_file_source_has_an_entry_of_its_own(spark, inbox, checkpoint):
    """Each batch has its own entry, with the settings it was planned under; the list of files is no start."""
    query = run(writer(files(spark, inbox), checkpoint))
    add_file(inbox, "b")
    query = run(writer(files(spark, inbox), checkpoint))
    reader = Checkpoint(checkpoint)
    assert_says_what_the_query_said(reader, query)
    assert [reader.offset_log(n).offsets for n in (0, 1)] == [{"0": {"logOffset": 0}}, {"0": {"logOffset": 1}}]
    assert reader.offset_log(1).version == 1
    assert reader.offset_log(1).metadata["conf"]["spark.sql.shuffle.partitions"] == "2"
    assert reader.offset_log(0).text != reader.offset_log(1).text
    assert reader.commit_log(1).version == 1
    assert reader.initial_offsets() == {}
    assert not reader.is_stateful()


def test_a_query_that_keeps_state_is_told_by_its_state_folder(spark, inbox, checkpoint):
    """State format 2 writes its state's ids into the commit entry, which has version 2 then."""
    counts = writer(files(spark, inbox).groupBy("a").count(), checkpoint, "complete")
    rocks = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    with settings(spark, stateStore__checkpointFormatVersion="2", stateStore__providerClass=rocks):
        query = run(counts)
    reader = Checkpoint(checkpoint)
    assert_says_what_the_query_said(reader, query)
    assert reader.is_stateful()
    commit = reader.commit_log(0)
    assert commit.version == 2
    assert list(commit.metadata["stateUniqueIds"]) == ["0"]


def test_offset_log_version_2(spark, inbox, tmp_path, checkpoint):
    """Version 2 names each source by its number, and leaves out one that had nothing yet."""
    (tmp_path / "empty").mkdir()
    both = files(spark, inbox).union(files(spark, tmp_path / "empty"))
    with settings(spark, offsetLog__formatVersion="2"):
        run(writer(both, checkpoint))
        assert Checkpoint(checkpoint).offset_log(0).version == 2
        assert Checkpoint(checkpoint).offset_log(0).offsets == {"0": {"logOffset": 0}}
        add_file(tmp_path / "empty", "b")
        query = run(writer(both, checkpoint))
    assert_says_what_the_query_said(Checkpoint(checkpoint), query)
    assert Checkpoint(checkpoint).offset_log(1).offsets == {"0": {"logOffset": 0}, "1": {"logOffset": 0}}


def test_a_named_source_has_its_offset_under_its_name(spark, inbox, checkpoint):
    """With source evolution, a source's offset stands under its name."""
    if not hasattr(spark.readStream, "name"):
        pytest.skip("this Spark has no named sources (they came after 4.1)")
    with settings(spark, queryEvolution__enableSourceEvolution="true"):
        orders = spark.readStream.name("orders").schema("a int").json(str(inbox))
        query = run(writer(orders, checkpoint))
    assert_says_what_the_query_said(Checkpoint(checkpoint), query)
    assert Checkpoint(checkpoint).offset_log(0).offsets == {"orders": {"logOffset": 0}}


def test_commit_log_version_3(spark, inbox, checkpoint):
    """With sink evolution, the commit entry names the sink and has version 3."""
    stream = writer(files(spark, inbox), checkpoint)
    # Only Scala has name() on a writer so far.
    if "name" not in {method.getName() for method in stream._jwrite.getClass().getMethods()}:
        pytest.skip("this Spark has no named sinks (they came with 4.3)")
    stream._jwrite.name("orders_sink")
    with settings(spark, queryEvolution__enableSinkEvolution="true"):
        query = run(stream)
    assert_says_what_the_query_said(Checkpoint(checkpoint), query)
    commit = Checkpoint(checkpoint).commit_log(0)
    assert commit.version == 3
    assert list(commit.metadata["sinkMetadataMap"]) == ["orders_sink"]


def test_a_continuous_query_has_an_empty_metadata_line(spark, checkpoint):
    """A continuous query is told by its empty metadata line, and its rate source is not taken for Kafka."""
    rate = spark.readStream.format("rate").option("numPartitions", 1).load()
    query = writer(rate, checkpoint).trigger(continuous="500 milliseconds").start()
    reader = Checkpoint(checkpoint)
    assert wait_until(lambda: reader.is_committed(1) or not query.isActive, PATIENCE_SECONDS)
    assert query.exception() is None
    query.stop()
    assert reader.query_id() == str(query.id)
    assert reader.offset_log(1).is_continuous
    assert reader.offset_log(1).metadata == {}
    assert list(reader.offset_log(1).offsets["0"]["0"]) == ["value", "runTimeMs"]
    assert kafka_partitions(reader.offset_log(1).offsets) == set()


@pytest.mark.thorough
@pytest.mark.parametrize("write", ["{relative}", "FILE:{path}", "file://{path}%20b c?x=1#é"])
def test_location_means_what_it_means_to_spark(spark, inbox, checkpoint, write):
    """However a location is written, the reader looks where Spark wrote."""
    location = write.format(path=checkpoint, relative=os.path.relpath(checkpoint))
    query = run(writer(files(spark, inbox), location))
    assert Checkpoint(location).query_id() == str(query.id)


@pytest.mark.kafka
def test_offsets_of_kafka_are_the_next_to_read(spark, kafka, topic, checkpoint):
    """Offsets are the next to read of every partition, empty ones too, and the start is kept apart."""
    orders, payments = topic(partitions=3), topic()
    send_to(kafka, orders, {0: 4, 1: 2})
    send_to(kafka, payments, {0: 1})
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    source = source.option("subscribe", f"{orders},{payments}")
    start = f'{{"{orders}":{{"0":1,"1":-2,"2":-2}},"{payments}":{{"0":-1}}}}'
    run(writer(source.option("startingOffsets", start).load(), checkpoint))
    send_to(kafka, orders, {0: 1, 2: 7})
    query = run(writer(source.load(), checkpoint))

    reader = Checkpoint(checkpoint)
    assert_says_what_the_query_said(reader, query)
    zero, first, second = reader.initial_offsets(), reader.offset_log(0).offsets, reader.offset_log(1).offsets
    assert zero == {"0": {orders: {"0": 1, "1": 0, "2": 0}, payments: {"0": 1}}}
    assert first == {"0": {orders: {"0": 4, "1": 2, "2": 0}, payments: {"0": 1}}}
    assert second == {"0": {orders: {"0": 5, "1": 2, "2": 7}, payments: {"0": 1}}}
    assert says_which_rows(second)
    assert kafka_partitions(second) == {(orders, 0), (orders, 1), (orders, 2), (payments, 0)}
    assert goes_back(zero, first) == goes_back(first, second) == []
    assert [said.split()[0] for said in goes_back(second, first)] == [f"{orders}-0", f"{orders}-2"]


@pytest.mark.kafka
@pytest.mark.parametrize("version", ["1", "2"])
def test_kafka_source_read_twice(spark, kafka, topic, checkpoint, version):
    """Both branches of a union begin where the one source began, whatever ids they have in the entry."""
    orders = topic()
    send_to(kafka, orders, {0: 4})
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    rows = source.options(subscribe=orders, startingOffsets=f'{{"{orders}":{{"0":1}}}}').load()
    with settings(spark, offsetLog__formatVersion=version):
        run(writer(rows.where("offset < 2").union(rows.where("offset > 1")), checkpoint))
    log = Checkpoint(checkpoint).offset_log(0)
    ids = ["0", "1"] if version == "1" else ["1"]
    assert log.offsets == {source_id: {orders: {"0": 4}} for source_id in ids}
    assert Checkpoint(checkpoint).initial_offsets(log) == {source_id: {orders: {"0": 1}} for source_id in ids}
