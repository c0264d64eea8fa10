"""One set of Kafka's settings is enough for Spark's source and for the brokers that the sink asks."""

from __future__ import annotations

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from support.query_runs import finish

pytestmark = [pytest.mark.spark, pytest.mark.kafka]


def test_spark_and_the_sink_log_in_alike(spark, secure_kafka, url, checkpoint, observer):
    """Over TLS and SCRAM, rows come from the topic into the table, and the ledger has the id of the topic."""
    client = AdminClient({"bootstrap.servers": secure_kafka.bootstrap_servers})
    client.create_topics([NewTopic("logged-in", 2, 1)], operation_timeout=10)["logged-in"].result(timeout=30)
    producer = Producer({"bootstrap.servers": secure_kafka.bootstrap_servers})
    for number in range(10):
        producer.produce("logged-in", str(number))
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
    rows = source.option("subscribe", "logged-in").option("startingOffsets", "earliest").load()
    with psycopg.connect(url) as admin:
        admin.execute("CREATE TABLE events (id bigint)")
    sink = rows.selectExpr("CAST(CAST(value AS STRING) AS BIGINT) AS id").writeStream.format("pgonce")
    sink = sink.options(url=url, table="events", checkpointLocation=checkpoint, bootstrapServers=servers, **login)
    finish(sink)
    assert observer.execute("SELECT array_agg(id ORDER BY id) FROM events").fetchone() == (list(range(10)),)
    (ids,) = observer.execute("SELECT topic_ids FROM pgonce.batches").fetchone()
    assert list(ids) == ["logged-in"]
