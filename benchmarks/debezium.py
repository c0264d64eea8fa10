"""
Write the topic with Debezium's JDBC sink.

Runs on the driver, with Kafka Connect in a JVM of its own. Invariant: it is set up to be fast: UNNEST, large batches,
as many tasks as cores, and no conversion that it can leave to Postgres.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping

import change_records
import kafka_json
from change_records import ChangeLoad
from kafka_connect import KafkaConnect
from kafka_json import JsonLoad

_ROWS_AT_ONCE = 5_000
_JSON = "org.apache.kafka.connect.json.JsonConverter"
# An envelope and its tombstone have different schemas, and where the schema changes, a batch ends: with both of them,
# every delete was a transaction of its own (seen with 3.5.0), and writing took three times as long.
_WITHOUT_TOMBSTONES = {
    "predicates": "tombstone",
    "predicates.tombstone.type": "org.apache.kafka.connect.transforms.predicates.RecordIsTombstone",
    "transforms": "drop",
    "transforms.drop.type": "org.apache.kafka.connect.transforms.Filter",
    "transforms.drop.predicate": "tombstone",
}
# The text goes into an array of timestamptz as it is: nothing is faster.
_ZONED_TIMESTAMP = {"type": "string", "name": "io.debezium.time.ZonedTimestamp", "optional": True}
_AS_THEY_COME = {"insert.mode": "insert", "primary.key.mode": "none"}


def debezium(load: JsonLoad, jdbc_url: str, table: str) -> KafkaConnect:
    """The sink, not yet started; a consumer group of its own reads the topic from the beginning."""
    connector = orders_connector(kafka_json.TOPIC, load.partitions, jdbc_url, table, _AS_THEY_COME)
    return KafkaConnect(load.bootstrap_servers, connector)


def orders_connector(
    topic: str, partitions: int, jdbc_url: str, table: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """The configuration of a sink for the six columns."""
    fields = {"id": "int64", "customer": "int32", "amount": "double", "status": "string", "note": "string"}
    order = _converter("value", _struct("order", **_optional(fields), at=_ZONED_TIMESTAMP))
    return _connector(topic, partitions, jdbc_url, table, {**settings, **order})


def debezium_with_deletes(load: ChangeLoad, jdbc_url: str, table: str) -> KafkaConnect:
    """The sink for envelopes: it upserts and deletes by the record's key."""
    columns = {"id": "int64", "customer": "string", "amount": "double", "note": "string"}
    row = _struct("shop.public.orders.Value", **_optional(columns), updated_at=_ZONED_TIMESTAMP)
    source = _struct("io.debezium.connector.postgresql.Source", **_optional({"ts_ms": "int64", "lsn": "int64"}))
    # By the end of its name the sink knows an envelope.
    envelope = _struct(
        "shop.public.orders.Envelope",
        before={**row, "optional": True},
        after={**row, "optional": True},
        source=source,
        **_optional({"op": "string", "ts_ms": "int64"}),
    )
    settings = {
        "insert.mode": "upsert",
        "delete.enabled": "true",
        "primary.key.mode": "record_key",
        "primary.key.fields": "id",
        # Without it, every change from an upsert to a delete and back ends a batch.
        "use.reduction.buffer": "true",
        **_WITHOUT_TOMBSTONES,
        **_converter("key", _struct("shop.public.orders.Key", id={"type": "int64", "optional": False})),
        **_converter("value", envelope),
    }
    connector = _connector(change_records.TOPIC, load.partitions, jdbc_url, table, settings)
    return KafkaConnect(load.bootstrap_servers, connector)


def _connector(topic: str, partitions: int, jdbc_url: str, table: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {
        "name": f"debezium-{uuid.uuid4()}",
        "connector.class": "io.debezium.connector.jdbc.JdbcSinkConnector",
        "tasks.max": str(min(os.cpu_count() or 2, partitions)),
        "topics": topic,
        "connection.url": jdbc_url,
        "connection.username": "postgres",
        "connection.password": "",
        "collection.name.format": table,
        "schema.evolution": "none",
        "batch.size": str(_ROWS_AT_ONCE),
        "dialect.postgres.unnest.insert.enabled": "true",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.max.poll.records": str(_ROWS_AT_ONCE),
        # Kafka's default of 1 MB ends in the middle of a batch, and leads to a fifth more transactions.
        "consumer.override.max.partition.fetch.bytes": str(8 * 1024 * 1024),
        **settings,
    }


def _converter(side: str, schema: Mapping[str, object]) -> dict[str, str]:
    return {
        f"{side}.converter": _JSON,
        f"{side}.converter.schemas.enable": "true",
        f"{side}.converter.schema.content": json.dumps(schema),
    }


def _struct(name: str, **fields: Mapping[str, object]) -> dict[str, object]:
    listed = [{"field": field, **schema} for field, schema in fields.items()]
    return {"type": "struct", "name": name, "optional": False, "fields": listed}


def _optional(types: Mapping[str, str]) -> dict[str, dict[str, object]]:
    return {field: {"type": kind, "optional": True} for field, kind in types.items()}
