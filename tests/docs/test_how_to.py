"""The recipes of docs/how-to: each is followed as it stands, on real servers, and brings what it promises."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_broker import spark_connector_jars
from maven import ROOT, MissingTool, jar_of_artifact
from psycopg.conninfo import make_conninfo
from support.fixtures.postgres import PLAIN_DATABASE, made_database
from support.fixtures.skips import unavailable
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
def bare_url(server_with):
    """``bare_url("vector")``: an empty database of a server that can create this extension."""
    with ExitStack() as stack:

        def make(extension: str) -> str:
            server = server_with(extension)
            return make_conninfo(server, dbname=stack.enter_context(made_database(server, PLAIN_DATABASE)))

        yield make


@pytest.fixture
def produce(kafka):
    """Put records into a topic that is made for them: ``produce(topic, {key: value})``."""

    def put(topic: str, records: Mapping[str, bytes]) -> None:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers})
        if topic not in admin.list_topics(timeout=30).topics:
            admin.create_topics([NewTopic(topic, num_partitions=2)], operation_timeout=10)[topic].result(timeout=30)
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for key, value in records.items():
            producer.produce(topic, value, key)
        assert producer.flush(30) == 0

    return put


@pytest.fixture
def jars():
    """What the pages name with ``--packages``."""
    try:
        return {CONNECTOR: spark_connector_jars(), AVRO: [jar_of_artifact(AVRO)]}
    except MissingTool as missing:
        unavailable(str(missing))


def test_every_recipe_has_its_test():
    """A page of docs/how-to is followed by the test of its name."""
    pages = {path.stem.replace("-", "_") for path in (ROOT / "docs" / "how-to").glob("*.md")} - {"index"}
    assert pages == {name.removeprefix("test_") for name in globals() if name.startswith("test_")} & pages


def test_embeddings_pgvector(start_reader, bare_url):
    """The newest text of each id is there with its vector, nearest first."""
    printed = start_reader(PGONCE_URL=bare_url("vector")).follow("how-to/embeddings-pgvector.md")
    assert [line for line in shown_by("how-to/embeddings-pgvector.md") if line not in as_words(printed)] == []


def test_points_postgis(start_reader, bare_url):
    """Points are found by distance, and one that is nowhere on Earth is a dead letter."""
    url = bare_url("postgis")
    printed = start_reader(PGONCE_URL=url).follow("how-to/points-postgis.md")
    assert "POINT(9.99 53.55)" in printed
    assert "POINT(8.58 53.54)" not in printed
    assert rows(url, "SELECT ship FROM positions ORDER BY 1") == [(1,), (2,)]
    assert rows(url, "SELECT row_data->>'ship' FROM pgonce.dead_letters") == [("3",)]


def test_partitions_and_retention(start_reader, url):
    """Rows are in the partitions of their months, and those of a dropped one do not come back."""
    start_reader(PGONCE_URL=url).follow("how-to/partitions-and-retention.md")
    found = rows(url, "SELECT tableoid::regclass::text, value FROM readings ORDER BY at")
    assert found == [("readings_2026_11", 2.0), ("readings_2026_12", 3.0)]


def test_backfill(start_reader, url):
    """Each order is there once, though a month was loaded twice."""
    start_reader(PGONCE_URL=url).follow("how-to/backfill.md")
    assert rows(url, "SELECT order_id FROM orders ORDER BY 1") == [(1,), (2,), (3,)]
    assert rows(url, "SELECT count(*) FROM pgonce.batch_job_skips") == [(1,)]


def test_environments(start_reader, url):
    """Two environments write with one program, and each has its line."""
    printed = start_reader(PGONCE_URL=url).follow("how-to/environments.md")
    assert rows(url, "SELECT * FROM dev.orders") == rows(url, "SELECT * FROM test.orders") != []
    lines = [line[:2] for line in as_words(printed)]
    assert [line for line in shown_by("how-to/environments.md") if line not in lines] == []


@pytest.mark.kafka
def test_blue_green(start_reader, kafka, produce, jars, url):
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


@contextmanager
def registry(versions: Sequence[Mapping[str, object]]) -> Iterator[str]:
    """A schema registry's HTTP interface, as far as the page asks: a subject's versions. Gives its address."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = re.fullmatch(r"/subjects/payments-value/versions(?:/(\d+))?", self.path)
            self.send_response(200 if asked else 404)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.end_headers()
            if asked:
                answer = versions[int(asked[1]) - 1] if asked[1] else [*range(1, len(versions) + 1)]
                self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def message(number: int, *texts: str) -> bytes:
    """A message in Protobuf's binary form: a small number as its first field, texts as those that follow."""
    found = bytes([1 << 3, number])
    for place, text in enumerate(texts, 2):
        found += bytes([place << 3 | 2, len(text)]) + text.encode()
    return found


@pytest.mark.kafka
def test_protobuf_schema_registry(start_reader, kafka, produce, jars, url):
    """A query that meets a newer version ends; started with its schema, it adds the new field's column."""
    versions = [{"version": 1, "id": 71}, {"version": 2, "id": 300}]
    head = {id_: b"\0" + id_.to_bytes(4, "big") + b"\0" for id_ in (71, 300)}
    with registry(versions) as address:
        env = {"PGONCE_URL": url, "KAFKA_SERVERS": kafka.bootstrap_servers, "REGISTRY": address}
        reader = start_reader(jars, **env)
        produce("payments", {"1": head[71] + message(1, "Ann")})
        reader.follow("how-to/protobuf-schema-registry.md")
        assert rows(url, "SELECT * FROM payments") == [(1, "Ann")]

        produce("payments", {"2": head[300] + message(2, "Bo", "late"), "3": head[71] + message(3, "Cem")})
        (commands,) = (b.text for b in blocks_of("how-to/protobuf-schema-registry.md") if b.language == "sh")
        *_, compile_, version, start = commands.strip().splitlines()
        assert "does not describe a record of schema 300, message 0" in reader.type(f"{start} 2>&1 || echo it ended")
        assert rows(url, "SELECT * FROM payments") == [(1, "Ann")]

        reader.type("sed -i 's/^}/  optional string note = 3;\\n}/' payment.proto")
        reader.type("\n".join([compile_, version.replace("1", "2"), start]))
    assert rows(url, "SELECT * FROM payments ORDER BY id") == [(1, "Ann", None), (2, "Bo", "late"), (3, "Cem", None)]


@pytest.mark.kafka
def test_avro_schema_registry(start_reader, kafka, produce, jars, url):
    """A query that meets a newer version ends, and once more started it adds the new field's column."""
    fields = [{"name": "id", "type": "long"}, {"name": "payer", "type": "string"}]
    first = {"subject": "payments-value", "version": 1, "id": 71, "schema": record_schema(*fields)}
    new_field = {"name": "note", "type": "string", "default": "none"}
    second = {"subject": "payments-value", "version": 2, "id": 300, "schema": record_schema(*fields, new_field)}
    head = {version["id"]: b"\0" + int(version["id"]).to_bytes(4, "big") for version in (first, second)}
    versions = [first]
    with registry(versions) as address:
        env = {"PGONCE_URL": url, "KAFKA_SERVERS": kafka.bootstrap_servers, "REGISTRY": address}
        reader = start_reader(jars, **env)
        produce("payments", {"1": head[71] + avro(1, "Ann")})
        reader.follow("how-to/avro-schema-registry.md")
        assert rows(url, "SELECT * FROM payments") == [(1, "Ann")]

        produce("payments", {"2": head[300] + avro(2, "Bo", "late"), "3": head[71] + avro(300, "Cem")})
        (start,) = (block.text for block in blocks_of("how-to/avro-schema-registry.md") if block.language == "sh")
        refused = reader.type(f"{start.strip()} 2>&1 || echo it ended")
        assert "[USER_RAISED_EXCEPTION] 300" in refused
        versions.append(second)
        reader.type(start)
    assert rows(url, "SELECT * FROM payments ORDER BY id") == [
        (1, "Ann", None),
        (2, "Bo", "late"),
        (300, "Cem", "none"),
    ]
