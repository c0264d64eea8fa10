"""
A table kept equal to another database's by a real Debezium with its default settings, and nothing in between.

Covers: sink.decoding.debezium_events.
"""

from __future__ import annotations

import secrets

import psycopg
import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from embedded_postgres import EmbeddedPostgres
from kafka_connect import KafkaConnect
from support.fixtures.driver import wait_until
from support.query_runs import rewind

from pgonce import topic_to_table

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.thorough]

COLUMNS = """id bigint, part int, amount numeric(12,2), wide numeric, at timestamptz, local timestamp, day date, t time,
    tz timetz, note text, doc jsonb, u uuid, raw bytea, f double precision, r real, ok boolean, tags text[], nums int[],
    s smallint"""
ROWS = [
    "1, 1, 12.50, 123456789012345678901234567890.123, '2026-01-31 12:00:00.123456+01', '1900-01-01 00:00:00.000001', "
    "'1969-12-31', '23:59:59.999999', '10:00:00+00', 'ä', '{\"a\": [1.10, null]}', "
    "'00000000-0000-0000-0000-000000000007', '\\x00ff', 0.1, 0.1, true, '{a,NULL}', '{1,2}', -7",
    "2, 1, -0.01, 1e-20, '1970-01-01 00:00+00', '9999-12-31 23:59:59.999999', '9999-12-31', '00:00', '05:00+00', "
    "'', '[]', NULL, '', -0.0, 1e38, false, '{}', NULL, 32767",
    "3, 1" + ", NULL" * 17,
    "4, 1" + ", NULL" * 17,
]
CHANGES = [
    "UPDATE orders SET amount = 99.99, doc = '1.50' WHERE id = 1",
    "UPDATE orders SET part = 2 WHERE id = 2",
    "DELETE FROM orders WHERE id = 3",
    "UPDATE orders SET id = 40 WHERE id = 4",
    "INSERT INTO orders (id, part, note) VALUES (3, 1, 'again'), (5, 1, repeat('x', 10))",
    "DELETE FROM orders WHERE id = 5",
]


@pytest.fixture
def source():
    """Another database, which logs what a connector needs."""
    with EmbeddedPostgres(settings={"wal_level": "logical"}) as server, psycopg.connect(server.uri()) as connection:
        connection.autocommit = True
        connection.execute(f"CREATE TABLE orders ({COLUMNS}, PRIMARY KEY (id))")
        # Debezium then says what was there before, and large values are never left out.
        connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        for row in ROWS:
            connection.execute(f"INSERT INTO orders VALUES ({row})")
        yield server, connection


@pytest.fixture
def connector(source, kafka):
    """A connector of that database with the default settings of Debezium; the topic of the table."""
    server, _ = source
    prefix = f"shop-{secrets.token_hex(4)}"
    topic = NewTopic(f"{prefix}.public.orders", num_partitions=2, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    admin.create_topics([topic])[topic.topic].result(timeout=30)
    of_debezium = {
        "name": prefix,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": server.host,
        "database.port": str(server.port),
        "database.user": "postgres",
        "database.password": "none",
        "database.dbname": "postgres",
        "topic.prefix": prefix,
        # Debian's Postgres and the embedded one have no other.
        "plugin.name": "pgoutput",
        "table.include.list": "public.orders",
    }
    converters = dict.fromkeys(("key.converter", "value.converter"), "org.apache.kafka.connect.json.JsonConverter")
    with KafkaConnect(kafka.bootstrap_servers, of_debezium, worker=converters):
        yield topic.topic


@pytest.mark.parametrize("keys", ["id", "id,part"])
def test_a_copy_equals_its_source(spark, keys, source, connector, kafka, url, checkpoint, observer):
    """Every type, updates of keys, deletes and the records without a value after them; also if a batch comes again."""
    _, of_source = source
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TABLE orders ({COLUMNS}, PRIMARY KEY ({keys}))")

    def start(**trigger):
        return topic_to_table(
            spark,
            kafka={"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": connector},
            url=url,
            table="orders",
            decode="json",
            mode="apply",
            change_feed="debezium",
            # The records' keys do not have the other column.
            null_values="ignore" if keys == "id,part" else "refuse",
            checkpoint_location=checkpoint,
            trigger=trigger,
        )

    rows = "SELECT o::text FROM orders AS o ORDER BY id"

    def is_equal():
        return observer.execute(rows).fetchall() == of_source.execute(rows).fetchall()

    query = start(processingTime="0 seconds")
    try:
        wait_until(lambda: query.exception() is not None or is_equal(), 20)
        assert observer.execute(rows).fetchall() == of_source.execute(rows).fetchall()
        for change in CHANGES:
            of_source.execute(change)
        wait_until(lambda: query.exception() is not None or is_equal(), 60)
        assert query.exception() is None
        assert observer.execute(rows).fetchall() == of_source.execute(rows).fetchall()
    finally:
        query.stop()
    rewind(checkpoint)
    assert start(availableNow=True).awaitTermination(60)
    assert observer.execute(rows).fetchall() == of_source.execute(rows).fetchall()
