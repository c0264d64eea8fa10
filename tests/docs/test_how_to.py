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
from maven import ROOT, jar_of_artifact
from schema_registry import SchemaRegistry
from support.page_reader import blocks_of

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"
AVRO = "org.apache.spark:spark-avro_2.13:4.2.0"

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
    return {CONNECTOR: spark_connector_jars(), AVRO: [jar_of_artifact(AVRO)]}


def test_every_recipe_has_its_test():
    """A page of docs/how-to is named by a test of this folder, which follows it."""
    pages = {f"how-to/{path.name}" for path in (ROOT / "docs" / "how-to").glob("*.md")} - {"how-to/index.md"}
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert sorted(page for page in pages if page not in tests) == []


def test_extension_types_pgvector(start_reader, bare_url):
    """The newest text of each id is there with its vector, nearest first."""
    printed = start_reader(PGONCE_URL=bare_url("vector")).follow("how-to/extension-types.md#pgvector")
    assert [line for line in shown_by("how-to/extension-types.md#pgvector") if line not in as_words(printed)] == []


def test_extension_types_postgis(start_reader, bare_url):
    """Points are found by distance, and one that is nowhere on Earth is a dead letter."""
    url = bare_url("postgis")
    printed = start_reader(PGONCE_URL=url).follow("how-to/extension-types.md#PostGIS")
    assert "POINT(9.99 53.55)" in printed
    assert "POINT(8.58 53.54)" not in printed
    assert rows(url, "SELECT ship FROM positions ORDER BY 1") == [(1,), (2,)]
    assert rows(url, "SELECT row_data->>'ship' FROM pgonce.dead_letters") == [("3",)]


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
    assert rows(url, "SELECT count(*) FROM pgonce.batch_job_skips") == [(1,)]


def test_the_tests_of_a_readers_job_pass_with_pytest(start_reader):
    """Both tests of a reader's job pass, on the embedded Postgres of the page."""
    printed = start_reader().follow("how-to/testing-with-pytest.md")
    assert printed.splitlines()[-1].startswith(" ".join(*shown_by("how-to/testing-with-pytest.md")))


def test_two_environments_write_with_one_program(start_reader, url):
    """Two environments write with one program, and each has its line."""
    printed = start_reader(PGONCE_URL=url).follow("running.md#Several environments in one database")
    assert rows(url, "SELECT * FROM dev.orders") == rows(url, "SELECT * FROM test.orders") != []
    lines = [line[:2] for line in as_words(printed)]
    assert [line for line in shown_by("running.md#Several environments in one database") if line not in lines] == []


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


def avro(*values: int | str) -> bytes:
    """The fields of a record in Avro's binary form: longs, and texts behind their lengths."""
    encoded = bytearray()
    for value in values:
        text = value.encode() if isinstance(value, str) else b""
        number = len(text) if isinstance(value, str) else value
        number <<= 1  # zigzag, of numbers from 0 on
        while number > 0x7F:
            encoded.append(number & 0x7F | 0x80)
            number >>= 7
        encoded.append(number)
        encoded += text
    return bytes(encoded)


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


def message(number: int, *texts: str) -> bytes:
    """A message in Protobuf's binary form: a small number as its first field, texts as those that follow."""
    found = bytes([1 << 3, number])
    for place, text in enumerate(texts, 2):
        found += bytes([place << 3 | 2, len(text)]) + text.encode()
    return found


@pytest.mark.kafka
def test_schema_registries_protobuf(start_reader, kafka, produce, jars, registry, url):
    """A query that meets a newer version ends; started with its schema, it adds the new field's column."""
    schema, _, commands = (block.text for block in blocks_of("how-to/schema-registries.md#Protobuf"))
    # Its first message: the byte after the id.
    first = head(registry.register("payments-value", schema, "PROTOBUF")) + b"\0"
    reader = start_reader(jars, PGONCE_URL=url, KAFKA_SERVERS=kafka.bootstrap_servers, REGISTRY=registry.address)
    produce("payments", {"1": first + message(1, "Ann")})
    reader.follow("how-to/schema-registries.md#Protobuf")
    assert rows(url, "SELECT * FROM payments") == [(1, "Ann")]

    field = "  optional string note = 3;"
    number = registry.register("payments-value", schema.replace("\n}", f"\n{field}\n}}"), "PROTOBUF")
    produce("payments", {"2": head(number) + b"\0" + message(2, "Bo", "late"), "3": first + message(3, "Cem")})
    *_, compile_, version, start = commands.strip().splitlines()
    refused = reader.type(f"{start} 2>&1 || echo it ended")
    assert f"schema {number}, message 0" in refused
    assert rows(url, "SELECT * FROM payments") == [(1, "Ann")]

    reader.type(f"sed -i 's/^}}/{field}\\n}}/' payment.proto")
    reader.type("\n".join([compile_, version.replace("1", "2"), start]))
    assert rows(url, "SELECT * FROM payments ORDER BY id") == [(1, "Ann", None), (2, "Bo", "late"), (3, "Cem", None)]


@pytest.mark.kafka
def test_schema_registries_avro(start_reader, kafka, produce, jars, registry, url):
    """A query that meets a newer version ends, and once more started it adds the new field's column."""
    fields = [{"name": "id", "type": "long"}, {"name": "payer", "type": "string"}]
    first = head(registry.register("payments-value", record_schema(*fields)))
    reader = start_reader(jars, PGONCE_URL=url, KAFKA_SERVERS=kafka.bootstrap_servers, REGISTRY=registry.address)
    produce("payments", {"1": first + avro(1, "Ann")})
    reader.follow("how-to/schema-registries.md#Avro")
    assert rows(url, "SELECT * FROM payments") == [(1, "Ann")]

    new_field = {"name": "note", "type": "string", "default": "none"}
    (start,) = (block.text for block in blocks_of("how-to/schema-registries.md#Avro") if block.language == "sh")
    # The number that its registration will get is not known to the query that runs.
    number = registry.register("others-value", record_schema(*fields, new_field))
    produce("payments", {"2": head(number) + avro(2, "Bo", "late"), "3": first + avro(300, "Cem")})
    refused = reader.type(f"{start.strip()} 2>&1 || echo it ended")
    assert f"[USER_RAISED_EXCEPTION] {number}" in refused
    # The same schema has the same number in each subject.
    assert registry.register("payments-value", record_schema(*fields, new_field)) == number
    reader.type(start)
    assert rows(url, "SELECT * FROM payments ORDER BY id") == [
        (1, "Ann", None),
        (2, "Bo", "late"),
        (300, "Cem", "none"),
    ]
