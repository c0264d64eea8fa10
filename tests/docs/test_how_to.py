"""Recipes, pages of docs/how-to and sections of others, are followed as they stand, and bring what they promise."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_broker import spark_connector_jars
from maven import ROOT
from schema_registry import SchemaRegistry
from support.page_reader import blocks_of
from support.pages import DOCS, sql_blocks

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.no_ledger]


def shown_by(page: str) -> list[list[str]]:
    """The lines that a page shows as an answer, as words."""
    (text,) = (block.text for block in blocks_of(page) if block.language == "text")
    return [line.split() for line in text.splitlines()]


def as_words(printed: str) -> list[list[str]]:
    """What commands printed, as words."""
    return [line.split() for line in printed.splitlines()]


def rows(url: str, query: str) -> list[tuple[object, ...]]:
    """What a query gives."""
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def produce(kafka):
    """Put records into a topic that is made for them, and is gone afterwards: ``produce(topic, {key: value})``."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
    made: list[str] = []

    def put(topic: str, records: Mapping[str, bytes]) -> None:
        if topic not in made:
            admin.create_topics([NewTopic(topic, num_partitions=2)], operation_timeout=10)[topic].result(timeout=30)
            made.append(topic)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for key, value in records.items():
            producer.produce(topic, value, key)
        assert producer.flush(30) == 0

    yield put
    # Other pages have topics of the same name.
    for topic, deleted in admin.delete_topics(made, operation_timeout=10).items() if made else ():
        deleted.result(timeout=30)
        assert topic not in admin.list_topics(timeout=30).topics


@pytest.fixture
def jars():
    """What the pages name with ``--packages``."""
    return {CONNECTOR: spark_connector_jars()}


def test_every_recipe_has_its_test():
    """A page of docs/how-to is named by a test of this folder, which follows it."""
    pages = {f"how-to/{path.name}" for path in (ROOT / "docs" / "how-to").glob("*.md")} - {"how-to/index.md"}
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert sorted(page for page in pages if page not in tests) == []


def test_extension_types_pgvector(start_reader, bare_url):
    """The newest text of each id is there with its vector, nearest first."""
    printed = start_reader(PGONCE_URL=bare_url("vector")).follow("how-to/extension-types.md#pgvector")
    assert [line for line in shown_by("how-to/extension-types.md#pgvector") if line not in as_words(printed)] == []


def test_rows_of_a_dropped_partition_do_not_come_back(start_reader, url):
    """Rows are in the partitions of their months, and those of a dropped one do not come back."""
    start_reader(PGONCE_URL=url).follow("how-to/partitions-and-retention.md#Partitions")
    found = rows(url, "SELECT tableoid::regclass::text, value FROM readings ORDER BY at")
    assert found == [("readings_2026_11", 2.0), ("readings_2026_12", 3.0)]


def test_partitions_and_retention_timescaledb(start_reader, bare_url):
    """A corrected row replaces the one in its chunk, a refused one is put aside, and a dropped chunk stays away."""
    url = bare_url("timescaledb")
    printed = start_reader(PGONCE_URL=url).follow("how-to/partitions-and-retention.md#Hypertables of TimescaleDB")
    assert [words[-1] for words in as_words(printed) if words[:2] == ["a", "|"]] == ["2", "3"]
    assert rows(url, "SELECT value FROM readings") == [(3.0,)]
    assert rows(url, "SELECT row_data->>'sensor' FROM pgonce.dead_letters") == [("b",)]


def test_a_month_that_is_loaded_twice_is_there_once(start_reader, url):
    """Each order is there once, though a month was loaded twice."""
    start_reader(PGONCE_URL=url).follow("batch-jobs.md#A backfill next to a live stream")
    assert rows(url, "SELECT order_id FROM orders ORDER BY 1") == [(1,), (2,), (3,)]
    (newest, *_) = sql_blocks((DOCS / "batch-jobs.md").read_text())
    assert [(key, skips) for key, _, _, _, skips, _ in rows(url, newest)] == [("2026-10", 1), ("2026-09", 0)]


def test_the_tests_of_a_readers_job_pass_with_pytest(start_reader):
    """Both tests of a reader's job pass, on the embedded Postgres of the page."""
    printed = start_reader().follow("how-to/testing-with-pytest.md")
    assert printed.splitlines()[-1].startswith(" ".join(*shown_by("how-to/testing-with-pytest.md")))


@pytest.mark.kafka
def test_readers_find_repaired_rows_under_the_old_name(start_reader, kafka, produce, jars, url):
    """Readers find the repaired rows under the old name, each once, and the new query goes on there."""
    produce("sales", {str(number): b"2" for number in range(10)})
    reader = start_reader(jars, PGONCE_URL=url, KAFKA_SERVERS=kafka.bootstrap_servers)
    *first, last = blocks_of("how-to/blue-green.md")
    for block in first:
        if block.text.startswith("spark-submit"):
            assert rows(url, "SELECT DISTINCT cents FROM sales") == [(200,)]
            produce("sales", {"10": b"2"})
        reader.do(block)
    reader.do(last)
    assert rows(url, "SELECT id, cents FROM sales ORDER BY id") == [(number, 200) for number in range(11)]
    assert rows(url, "SELECT to_regclass('sales_new')") == [(None,)]


def record_schema(*fields: Mapping[str, str]) -> str:
    """A record's schema in Avro's JSON."""
    return json.dumps({"type": "record", "name": "payment", "fields": fields})


@pytest.fixture
def registry() -> Iterator[SchemaRegistry]:
    """A registry in which no schema is registered yet."""
    with SchemaRegistry() as found:
        yield found


def head(schema_id: int) -> bytes:
    """The five bytes with which Confluent's serializer begins."""
    return b"\0" + schema_id.to_bytes(4, "big")


AVRO_2 = {"name": "note", "type": ["null", "string"]}


@pytest.mark.kafka
@pytest.mark.parametrize("kind", ["AVRO", "PROTOBUF"])
def test_a_topic_with_a_registry_is_a_table(kind, start_reader, kafka, produce, jars, registry, url):
    """By the program of the page; a newer version gets its column."""
    fields = [{"name": "id", "type": "long"}, {"name": "payer", "type": "string"}]
    schema = 'syntax = "proto3"; message Payment { int64 id = 1; string payer = 2; }'
    schemas = {
        "AVRO": (record_schema(*fields), record_schema(*fields, AVRO_2)),
        "PROTOBUF": (schema, schema.replace("}", "optional string note = 3; }")),
    }
    # The number in zigzag, and texts behind their lengths; in Protobuf each field behind its number, and before all of
    # them the message's place.
    records = {
        "AVRO": (b"\x02\x06Ann", b"\x04\x04Bo\x02\x08late"),
        "PROTOBUF": (b"\0\x08\x01\x12\x03Ann", b"\0\x08\x02\x12\x02Bo\x1a\x04late"),
    }
    reader = start_reader(jars, PGONCE_URL=url, KAFKA_SERVERS=kafka.bootstrap_servers, REGISTRY=registry.address)
    first = head(registry.register("payments-value", schemas[kind][0], kind)) + records[kind][0]
    produce("payments", {"1": first})
    program, start = blocks_of("how-to/schema-registries.md")
    reader.do(program._replace(text=program.text.replace('"avro"', f'"{kind.lower()}"')))
    reader.do(start)
    assert rows(url, "SELECT * FROM payments") == [(1, "Ann")]
    newer = head(registry.register("payments-value", schemas[kind][1], kind)) + records[kind][1]
    produce("payments", {"2": newer, "3": first})
    reader.do(start)
    ann = (1, "Ann", None)
    assert rows(url, "SELECT * FROM payments ORDER BY id") == [ann, ann, (2, "Bo", "late")]


def test_an_auditor_finds_what_is_wrong_with_a_table(start_reader, url):
    """The page's table has lost a row, and has another one twice."""
    reader = start_reader(PGONCE_URL=url)
    (reader.directory / "examples").mkdir()
    (reader.directory / "examples" / "audit.sql").write_text((ROOT / "examples" / "audit.sql").read_text())
    page = "how-to/audit.md#A table against its source"
    printed = reader.follow(page)
    assert [line for line in shown_by(page) if line not in as_words(printed)] == []
