"""
How does Debezium's JDBC sink write the topic?

Runs on the driver, with Kafka Connect in a JVM of its own. Invariant: it is set up to be fast: UNNEST, large batches,
as many tasks as cores, and no conversion that it can leave to Postgres.
"""

from __future__ import annotations

import json
import os
import uuid

from kafka_connect import KafkaConnect
from kafka_json import TOPIC, JsonLoad

_ROWS_AT_ONCE = 5_000
_FIELDS = (
    ("id", "int64"),
    ("customer", "int32"),
    ("amount", "double"),
    ("status", "string"),
    ("note", "string"),
)
# The text goes into an array of timestamptz as it is: nothing is faster.
_AT = {"field": "at", "type": "string", "name": "io.debezium.time.ZonedTimestamp", "optional": True}


def debezium(load: JsonLoad, jdbc_url: str, table: str) -> KafkaConnect:
    """The sink, not yet started; a consumer group of its own reads the topic from the beginning."""
    fields = [{"field": name, "type": kind, "optional": True} for name, kind in _FIELDS]
    schema = {"type": "struct", "name": "order", "optional": False, "fields": [*fields, _AT]}
    connector = {
        "name": f"debezium-{uuid.uuid4()}",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": str(min(os.cpu_count() or 2, load.partitions)),
        "topics": TOPIC,
        "connection.url": jdbc_url,
        "connection.username": "postgres",
        "connection.password": "",
        "collection.name.format": table,
        "insert.mode": "insert",
        "primary.key.mode": "none",
        "schema.evolution": "none",
        "batch.size": str(_ROWS_AT_ONCE),
        "dialect.postgres.unnest.insert.enabled": "true",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
        "value.converter.schema.content": json.dumps(schema),
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.max.poll.records": str(_ROWS_AT_ONCE),
        # Kafka's default of 1 MB ends in the middle of a batch, and leads to a fifth more transactions.
        "consumer.override.max.partition.fetch.bytes": str(8 * 1024 * 1024),
    }
    return KafkaConnect(load.bootstrap_servers, connector)
