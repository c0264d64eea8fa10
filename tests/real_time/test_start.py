"""
Queries in real-time and continuous mode: from Kafka's producer to the table, exactly once, on a real Spark.

Covers: pgonce.real_time.java_writer, pgonce.real_time.recorder, pgonce.real_time.plan.
"""

from __future__ import annotations

import json
import time

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.types import LongType
from support.fixtures.driver import wait_until
from support.real_time_job import source_of

import pgonce
from pgonce import OffsetsStore, PgonceError, PostgresBatchWriter
from pgonce.real_time import recorder
from pgonce.real_time.recorder import ends_of, reported
from pgonce.real_time.run import Run

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.slow]

# Spark waits out a batch before it stops, so batches are short here.
TRIGGERS = {"real-time": {"real_time": "5 seconds"}, "continuous": {"continuous": "1 second"}}


@pytest.fixture
def produce(kafka):
    """Send numbered records to a topic, keyed by their number."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 1})

    def send(name, numbers):
        for number in numbers:
            producer.produce(name, json.dumps({"id": number, "body": f"row {number}"}), key=str(number))
            producer.poll(0)
        producer.flush(30)

    return send


def as_rows(records):
    """The position, and two columns of the record's value."""
    value = f.from_json(f.col("value").cast("string"), "id bigint, body string")
    return records.select("topic", "partition", "offset", value.alias("v")).select(
        "topic", "partition", "offset", "v.id", "v.body"
    )


@f.udf(LongType())
def plus_one(number):
    """Python, which Spark runs in a worker."""
    return number + 1


def other_stream(records):
    """Another stream of Kafka's, which begins where it wants."""
    source = records.sparkSession.readStream.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:9")
    return source.option("subscribe", "another").load()


@pytest.fixture
def recreate(kafka):
    """Delete a topic and create another of its name, without records."""
    brokers = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})

    def another(name):
        brokers.delete_topics([name])[name].result(30)
        wait_until(lambda: name not in brokers.list_topics(timeout=30).topics)
        brokers.create_topics([NewTopic(name, num_partitions=1)])[name].result(30)

    return another


@pytest.fixture
def begin(spark, kafka, tcp_url, tmp_path):
    """Start a query over a topic into the table orders."""

    def start(name, trigger="real-time", rows=as_rows, source=None, **options):
        return pgonce.start_real_time(
            spark,
            kafka={**source_of(kafka.bootstrap_servers, name), **(source or {})},
            rows=rows,
            url=tcp_url,
            **{
                "table": "orders",
                "checkpoint_location": str(tmp_path / "query"),
                "write_positions": False,
                "create_table": True,
                **TRIGGERS[trigger],
                **options,
            },
        )

    return start


@pytest.fixture
def ids(observer):
    """The ids in the table, in order, once there are as many; or what there is after a while."""

    def read(count, query=None):
        deadline = time.monotonic() + 60
        while True:
            found = [row[0] for row in observer.execute("SELECT id FROM orders ORDER BY id").fetchall()]
            if len(found) >= count or time.monotonic() > deadline or (query is not None and not query.isActive):
                return found
            time.sleep(0.05)

    return read


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_start_that_fails_ends_no_query(trigger, begin, conf, topic, produce, ids, tcp_url):
    """The query that runs goes on: neither the user's function nor Spark refuses the new run when it has taken over."""
    name = topic(1)
    produce(name, range(10))
    query = begin(name, trigger)
    assert ids(10, query) == list(range(10)), query.exception()

    def fails(_):
        raise LookupError

    with pytest.raises(LookupError):
        begin(name, trigger, rows=fails)
    conf("spark.sql.streaming.stopActiveRunOnRestart", "false")
    with pytest.raises(PgonceError, match="QUERY_RUNNING"):
        begin(name, trigger)
    produce(name, range(10, 20))
    assert ids(20, query) == list(range(20)), query.exception()
    assert query.isActive
    assert OffsetsStore(tcp_url).failures() == []
    query.stop()


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_query_that_writes_on_until_it_is_replaced(trigger, begin, topic, produce, ids, monkeypatch):
    """What it has stored since the new run was planned is read again, and passed over."""
    name = topic(1)
    produce(name, range(10))
    older = begin(name, trigger)
    assert ids(10, older) == list(range(10)), older.exception()
    taken_over = Run.begin

    def later(*arguments):
        produce(name, range(10, 20))
        assert ids(20, older) == list(range(20))
        taken_over(*arguments)

    monkeypatch.setattr(Run, "begin", later)
    query = begin(name, trigger)
    produce(name, range(20, 30))
    assert ids(30, query) == list(range(30)), query.exception()
    assert query.isActive
    query.stop()


def test_a_table_that_was_renamed(begin, topic, produce, ids, admin):
    """Under its new name the ledger knows no rows of the query, which would read all of them again."""
    name = topic(1)
    query = begin(name, independent=True)
    produce(name, range(5))
    assert ids(5, query) == list(range(5))
    query.stop()
    admin.execute("ALTER TABLE orders RENAME TO renamed")
    with pytest.raises(PgonceError, match=r"\[UNKNOWN\]"):
        begin(name, table="renamed", independent=True)


def test_what_a_continuous_query_has_stored_is_recorded(begin, topic, produce, ids, tcp_url):
    """Spark says nothing of its progress there; every few seconds a batch is recorded if rows have come."""
    name = topic(1)
    query = begin(name, "continuous", query_name="orders")
    produce(name, range(10))
    assert ids(10, query) == list(range(10)), query.exception()
    store = OffsetsStore(tcp_url)
    assert wait_until(lambda: store.latest("orders").batch_id == 1, 30)
    assert sum(batch.rows for batch in store.history("orders")) == 10
    query.stop()
    assert store.latest("orders").batch_id == 1


@pytest.mark.parametrize("records", [5, 0])
def test_a_topic_that_is_created_again(records, begin, topic, produce, ids, recreate, tcp_url, monkeypatch):
    """
    Spark goes on in the new topic where the old one ended. The query ends, and the ledger says why.

    After five records Spark itself fails: the new topic has no sixth one. After none it reads on, and is stopped.
    """
    # Where Spark is to be first, a query that runs is not looked at.
    monkeypatch.setattr(recorder, "_TOPICS_SECONDS", 3600.0 if records else 1.0)
    monkeypatch.setattr(recorder, "_TASKS_SECONDS", 1)
    name = topic(1)
    query = begin(name, "continuous")
    produce(name, range(records))
    assert ids(records, query) == list(range(records))
    recreate(name)
    store = OffsetsStore(tcp_url)
    assert wait_until(lambda: [failure.code for failure in store.failures()] == ["RECREATED"], 60)
    assert wait_until(lambda: not query.isActive, 60)


def test_a_topic_that_gets_a_partition(begin, topic, ids, kafka):
    """Spark plans a continuous query again: its process knows what was stored, with records left out on the way."""
    name = topic(1)
    some = lambda records: as_rows(records).where("id % 3 = 2")  # noqa: E731
    query = begin(name, "continuous", some, {"kafka.metadata.max.age.ms": 1000})

    def produce(numbers, partition):
        # A producer that is older than a partition does not know it for a while.
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in numbers:
            producer.produce(name, json.dumps({"id": number, "body": "b"}), partition=partition)
        producer.flush(30)

    produce(range(10), 0)
    assert ids(3, query) == [2, 5, 8], query.exception()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_partitions([NewPartitions(name, 2)])[name].result(30)
    produce([101, 103, 104], 1)
    produce(range(10, 20), 0)
    assert ids(8, query) == [2, 5, 8, 11, 14, 17, 101, 104], query.exception()
    assert query.isActive
    query.stop()


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_each_record_is_there_once_over_restarts(trigger, begin, topic, produce, ids, tcp_url):
    """Rows come within the batch, and a query that starts again goes on where its rows end."""
    name = topic(2)
    query = begin(name, trigger, query_name="orders")
    produce(name, range(200))
    assert ids(200, query) == list(range(200)), query.exception()
    query.stop()
    produce(name, range(200, 300))
    query = begin(name, trigger, query_name="orders")
    produce(name, range(300, 400))
    assert ids(400, query) == list(range(400)), query.exception()
    query.stop()
    writer = OffsetsStore(tcp_url).latest("orders")
    stored = [row.offset for row in writer.positions]
    assert (writer.query_name, writer.transport, sum(stored)) == ("orders", "real-time", 400)


def test_a_query_that_gets_no_core(begin, topic, produce, ids, caplog, tmp_path):
    """Another query of the application has them all, which the log says; nothing is lost."""
    has_them = begin(topic(2), "continuous", table="others", checkpoint_location=str(tmp_path / "others"))
    name = topic(1)
    waits = begin(name, "continuous")
    produce(name, range(10))
    assert wait_until(lambda: "no core left for 1 of its tasks" in caplog.text, 60)
    assert ids(0) == []
    has_them.stop()
    assert ids(10, waits) == list(range(10))
    waits.stop()


def test_values_arrive_as_spark_holds_them(begin, topic, produce, observer, ids):
    """Each type that is written has the value that Spark has, null and extremes among them."""
    name = topic(1)

    def rows(records):
        n = f.col("value").cast("string")
        odd = f.get_json_object(n, "$.id").cast("long") % 2 == 1
        values = {
            "boolean": "true", "tinyint": "-128", "smallint": "-32768", "int": "2147483647",
            "bigint": "-9223372036854775808", "float": "1.1", "double": "2.2250738585072014E-308",
            "decimal(38,10)": "-1234567890123456789012345678.0123456789",
            "string": 'a"b\\c{,}\n\t\u00e9\U0001f600 NULL',
            "date": "0044-03-15", "timestamp": "1582-10-04 23:59:59.999999Z",
            "timestamp_ntz": "9999-12-31 23:59:59.123456",
        }  # fmt: skip
        columns = [f.when(odd, f.lit(text).cast(kind)).alias(f"c{i}") for i, (kind, text) in enumerate(values.items())]
        binary = f.when(odd, f.unhex(f.lit("00FF5C22"))).alias("bytes")
        nan = f.when(odd, f.lit("NaN").cast("double")).alias("nan")
        infinite = f.when(odd, f.lit("-Infinity").cast("float")).alias("infinite")
        number = f.get_json_object(n, "$.id").cast("long").alias("id")
        return records.select("topic", "partition", "offset", number, *columns, binary, nan, infinite)

    query = begin(name, rows=rows)
    produce(name, [1, 2])
    assert ids(2, query) == [1, 2], query.exception()
    query.stop()
    one, two = observer.execute("SELECT to_jsonb(o) - 'id' FROM orders AS o ORDER BY id").fetchall()
    assert set(two[0].values()) == {None}
    assert one[0] == {
        "c0": True, "c1": -128, "c2": -32768, "c3": 2147483647, "c4": -9223372036854775808, "c5": 1.1,
        "c6": 2.2250738585072014e-308, "c7": pytest.approx(-1234567890123456789012345678.0123456789),
        "c8": 'a"b\\c{,}\n\t\u00e9\U0001f600 NULL', "c9": "0044-03-15", "c10": "1582-10-04T23:59:59.999999+00:00",
        "c11": "9999-12-31T23:59:59.123456", "bytes": "\\x00ff5c22", "nan": "NaN", "infinite": "-Infinity",
    }  # fmt: skip


def test_rows_of_one_record_come_together(begin, topic, produce, ids, observer):
    """With explode, a record's rows are written once the next record of its partition has come, or the batch ends."""
    name = topic(1)

    def rows(records):
        number = f.get_json_object(f.col("value").cast("string"), "$.id").cast("long")
        numbers = f.expr("sequence(0L, 2L)")
        return (
            records.withColumn("n", number)
            .select("topic", "partition", "offset", f.explode(numbers).alias("part"), "n")
            .select("topic", "partition", "offset", (f.col("n") * 10 + f.col("part")).alias("id"))
        )

    query = begin(name, rows=rows)
    produce(name, range(20))
    assert ids(60, query) == [n * 10 + part for n in range(20) for part in range(3)], query.exception()
    query.stop()


def test_a_row_that_the_table_refuses_ends_the_query(begin, topic, produce, admin, ids, tcp_url):
    """The query fails with the sentence of the refusal; what came before is there, and it goes on once repaired."""
    admin.execute("CREATE TABLE orders (id bigint CONSTRAINT below_100 CHECK (id < 100), body text)")
    name = topic(1)
    query = begin(name)
    produce(name, [1, 2])
    assert ids(2, query) == [1, 2], query.exception()
    produce(name, [100])
    with pytest.raises(Exception, match=r"\[CHECK_VIOLATION\].*below_100"):
        query.awaitTermination(60)
    store = OffsetsStore(tcp_url)
    assert wait_until(lambda: [failure.code for failure in store.failures()] == ["CHECK_VIOLATION"], 20)
    admin.execute("ALTER TABLE orders DROP CONSTRAINT below_100")
    query = begin(name)
    assert ids(3, query) == [1, 2, 100], query.exception()
    query.stop()


def test_a_text_that_is_not_utf_8_is_refused(begin, topic, produce, admin):
    """It would come with other characters through a string of Java's."""
    admin.execute("CREATE TABLE orders (id text)")
    name = topic(1)
    query = begin(
        name, rows=lambda r: r.select("topic", "partition", "offset", f.unhex(f.lit("61FF")).cast("string").alias("id"))
    )
    produce(name, [1])
    with pytest.raises(StreamingQueryException, match="TEXT_NOT_UTF8"):
        query.awaitTermination(60)


def test_a_database_that_went_back_ends_the_query_with_that_error(begin, topic, produce, admin, ids, tcp_url):
    """Also if the driver is the first to notice; started again, the query brings what was lost."""
    name = topic(1)
    query = begin(name)
    produce(name, range(10))
    assert ids(10, query) == list(range(10)), query.exception()
    # As after a restore, before the batch has ended; and no rows come by which a task would notice.
    with admin.transaction():
        admin.execute("DELETE FROM orders")
        admin.execute("UPDATE pgonce.positions SET next_offset = 0, rows = 0")
    assert wait_until(OffsetsStore(tcp_url).failures, 60)
    produce(name, range(10, 20))
    with pytest.raises(StreamingQueryException, match="POSITION_WENT_BACK"):
        query.awaitTermination(60)
    query = begin(name)
    assert ids(20, query) == list(range(20)), query.exception()
    query.stop()


def test_a_database_that_goes_back_is_noticed_without_a_record(begin, topic, produce, admin, tcp_url, monkeypatch):
    """The batch that has brought the rows is recorded, and none has ended since that says more."""
    monkeypatch.setattr(recorder, "_RECORD_SECONDS", 0.5)
    name = topic(1)
    query = begin(name)
    produce(name, range(10))
    recorded = b"SELECT sum(rows) FROM pgonce.batches"
    assert wait_until(lambda: admin.execute(recorded).fetchone() == (10,), 60)
    with admin.transaction():
        admin.execute("DELETE FROM orders")
        admin.execute("UPDATE pgonce.positions SET next_offset = 0, rows = 0")
    store = OffsetsStore(tcp_url)
    assert wait_until(lambda: [failure.code for failure in store.failures()] == ["POSITION_WENT_BACK"], 30)
    query.stop()


def test_micro_batches_go_on_from_real_time_and_back(
    begin, spark, kafka, topic, produce, recreate, ids, tcp_url, tmp_path
):
    """
    The same query, checkpoint and table change their mode, and each record stays there once.

    Micro-batches that do not ask for the topic's id, as real time has, are refused. So is a start in real time over
    another topic of that name, even if it has as many records.
    """
    name = topic(1)

    def in_micro_batches(**brokers):
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        records = source.option("subscribe", name).option("startingOffsets", "earliest").load()
        writer = PostgresBatchWriter(
            tcp_url, table="orders", position_columns=["topic", "partition", "offset"], write_positions=False, **brokers
        )
        stream = as_rows(records).writeStream.foreachBatch(writer).trigger(availableNow=True)
        stream.option("checkpointLocation", str(tmp_path / "query")).start().awaitTermination(120)

    produce(name, range(10))
    query = begin(name)
    assert ids(10, query) == list(range(10)), query.exception()
    query.stop()
    produce(name, range(10, 20))
    with pytest.raises(StreamingQueryException, match="RECREATED"):
        in_micro_batches()
    in_micro_batches(bootstrap_servers=kafka.bootstrap_servers)
    assert ids(20) == list(range(20))
    produce(name, range(20, 30))
    query = begin(name)
    assert ids(30, query) == list(range(30)), query.exception()
    query.stop()
    produce(name, range(30, 40))
    in_micro_batches(bootstrap_servers=kafka.bootstrap_servers)
    assert ids(40) == list(range(40))
    recreate(name)
    produce(name, range(40))
    with pytest.raises(PgonceError, match="RECREATED"):
        begin(name)


# What a start is given, and why it is refused.
REFUSED = {
    # It could lose or double rows.
    "repartition": ({"rows": lambda r: as_rows(r).repartition(2)}, "Repartition"),
    "deduplication": ({"rows": lambda r: as_rows(r).dropDuplicates(["id"])}, "Deduplicate"),
    "another offset": (
        {"rows": lambda r: as_rows(r).withColumn("offset", f.col("offset") - 1)}, "is not the Kafka source's offset",
    ),
    "union": ({"rows": lambda r: as_rows(r).union(as_rows(r))}, "Union"),
    "no offset": ({"rows": lambda r: as_rows(r).select("topic", "partition", "id")}, "offset"),
    "another stream": ({"rows": lambda r: as_rows(other_stream(r))}, "do not come from the frame"),
    "a subquery": ({"rows": lambda r: as_rows(r).where("id IN (SELECT 1)")}, "subquery"),
    "an array": (
        {"rows": lambda r: as_rows(r).withColumn("list", f.array("id"))}, "which is not written in real-time",
    ),
    # Spark says so when it starts the query, and by then an older run would no longer write.
    "a watermark": (
        {"trigger": "continuous", "rows": lambda r: as_rows(r.withWatermark("timestamp", "1 minute"))},
        "REAL_TIME_PLAN.*EventTimeWatermark",
    ),
    "the time": (
        {"trigger": "continuous", "rows": lambda r: as_rows(r).withColumn("at", f.current_timestamp())},
        "REAL_TIME_PLAN.*current time",
    ),
    "a Python UDF": (
        {"rows": lambda r: as_rows(r).withColumn("id", plus_one("id"))}, "REAL_TIME_PLAN.*Python UDF",
    ),
    "a short batch": ({"real_time": "1 second"}, "BAD_OPTION.*shorter than 5000 ms"),
    "an option of Kafka": ({"source": {"maxOffsetsPerTrigger": 5}}, "BAD_OPTION.*maxOffsetsPerTrigger"),
    "two triggers": ({"continuous": "1 second"}, "Exactly one"),
}  # fmt: skip


class TestRefused:
    @pytest.mark.parametrize(("given", "why"), REFUSED.values(), ids=REFUSED)
    def test_what_cannot_run_as_promised_is_refused_before_a_table_is_made(self, begin, topic, given, why, observer):
        """Its plan, its settings and its source are looked at before anything is written."""
        with pytest.raises(PgonceError, match=why):
            begin(topic(1), **given)
        assert observer.execute("SELECT to_regclass('orders')").fetchone() == (None,)

    def test_a_query_with_more_partitions_than_cores_is_not_started(self, begin, topic):
        """A partition for which there is no core would never be read, so the query is not started."""
        with pytest.raises(PgonceError, match="TOO_FEW_CORES.*8 partitions"):
            begin(topic(8))

    def test_another_query_of_the_table(self, begin, topic, produce, ids, tmp_path):
        """A query with another checkpoint location is refused as a rival, until it is said to read other rows."""
        name = topic(1)
        produce(name, [1])
        query = begin(name)
        assert ids(1, query) == [1], query.exception()
        query.stop()
        other = {"checkpoint_location": str(tmp_path / "other")}
        with pytest.raises(PgonceError, match="FOREIGN"):
            begin(name, **other)
        # What was refused has left nothing there that looks like a run.
        produce(name, [2])
        query = begin(name, **other, independent=True, source={"startingOffsets": "latest"})
        produce(name, [3])
        assert ids(2, query) == [1, 3], query.exception()
        query.stop()


def test_ends_of_a_batch_are_read_from_events_in_either_form():
    """The end of a batch is read from Spark's event in either form, and reports of tasks with any topic's name."""
    assert ends_of({"sources": [{"endOffset": '{"a":{"0":3}}'}]}) == {"0": {"a": {"0": 3}}}
    assert ends_of({"sources": [{"endOffset": {"a": {"0": 3}}}]}) == {"0": {"a": {"0": 3}}}
    assert ends_of({"sources": [{"endOffset": "-"}]}) is None
    assert ends_of({"sources": []}) is None
    assert reported(["a.b-c_d 12 345"]) == {("a.b-c_d", 12): 345}
