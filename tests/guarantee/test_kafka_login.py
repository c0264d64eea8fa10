"""One set of Kafka's settings is enough for Spark's source and for the brokers that each way in asks."""

from __future__ import annotations

import secrets

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.query_runs import finish

from pgonce import PostgresBatchWriter, transactional_batch

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def sink(stream, url, servers, login):
    """The Data Source takes the settings as Spark's source does."""
    return stream.format("pgonce").options(url=url, table="events", bootstrapServers=servers, **login)


def writer(stream, url, servers, login):
    """A writer for foreachBatch takes them as an argument."""
    return stream.foreachBatch(PostgresBatchWriter(url, table="events", bootstrap_servers=servers, kafka_options=login))


def function(stream, url, servers, login):
    """A function for foreachBatch takes them so, too."""

    @transactional_batch(url, name="events", bootstrap_servers=servers, kafka_options=login)
    def write(batch, tx):
        tx.append(batch, "events")

    return stream.foreachBatch(write)


@pytest.mark.parametrize("way", [sink, writer, function])
def test_spark_and_pgonce_log_in_alike(spark, secure_kafka, url, checkpoint, observer, way):
    """Over TLS and SCRAM, rows come from the topic into the table, and the ledger has the id of the topic."""
    topic = f"logged-in-{secrets.token_hex(4)}"
    client = AdminClient({"bootstrap.servers": secure_kafka.bootstrap_servers})
    client.create_topics([NewTopic(topic, 2, 1)], operation_timeout=10)[topic].result(timeout=30)
    producer = Producer({"bootstrap.servers": secure_kafka.bootstrap_servers})
    for number in range(10):
        producer.produce(topic, str(number))
    assert producer.flush(30) == 0
    login = {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.jaas.config": secure_kafka.scram(),
        "kafka.ssl.truststore.location": str(secure_kafka.authority),
        "kafka.ssl.truststore.type": "PEM",
    }
    servers = secure_kafka.servers("SASL_SSL")
    source = spark.readStream.format("kafka").options(**login).option("kafka.bootstrap.servers", servers)
    rows = source.option("subscribe", topic).option("startingOffsets", "earliest").load()
    with psycopg.connect(url) as admin:
        admin.execute("CREATE TABLE events (id bigint)")
    stream = rows.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS id").writeStream
    finish(way(stream.option("checkpointLocation", checkpoint), url, servers, login))
    assert observer.execute("SELECT array_agg(id ORDER BY id) FROM events").fetchone() == (list(range(10)),)
    (ids,) = observer.execute("SELECT topic_ids FROM pgonce.batches").fetchone()
    assert list(ids) == [topic]
