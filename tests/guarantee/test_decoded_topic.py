"""
A topic of JSON records into a table: every record is in the table once, or aside with the reason, by every way in.

Covers: pgonce.dead_letters.decoded_letters, sink.decoding.record_reader.
"""

from __future__ import annotations

import json
from decimal import Decimal
from functools import partial

import psycopg
import pytest
from support import rotating_password
from support.fixtures.thorough import by_way
from support.query_runs import finish, rewind
from support.ways_in import TABLE_WAYS, Sink

from pgonce.dead_letters.chosen_letters import chosen_letters
from pgonce.dead_letters.replay import replay_letters
from pgonce.offsets_store.errors import RecoveryError, TargetError
from pgonce.offsets_store.postgres.postgres_url import source_of

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

DECODED = {"decode": "json"}


def by_name(name):
    """The way in of this name."""
    return next(way for way in TABLE_WAYS if way.name == name)


@pytest.fixture
def create(url):
    """Create a table."""

    def run(columns, name="orders"):
        with psycopg.connect(url) as connection:
            connection.execute(f"CREATE TABLE {name} ({columns})")

    return run


NAMES = ("inline", "writer_append", "received", "staged")
WAYS = by_way([way for way in TABLE_WAYS if way.name in NAMES], NAMES[:2])


@pytest.mark.parametrize("way", WAYS)
def test_each_record_is_in_the_table_or_aside(spark, way, records, create, url, checkpoint, observer):
    """What cannot be read is put aside with its bytes, and a batch that comes again adds nothing."""
    create("id bigint PRIMARY KEY, amount numeric(10,2), at timestamptz, info jsonb")
    good = {"id": 9007199254740993, "amount": 12.50, "at": "2026-01-31T12:00:00+01:00", "info": {"b": 1, "a": [1.0]}}
    records.send(good)
    records.send(b'{"id": 2, "amount": "12,50"}', key=b"two", headers=[("trace", b"abc")])
    records.send(b"not JSON", partition=1)
    records.send({"id": 4, "at": "2026-01-31T12:00:00"})
    sink = Sink(url, "orders", checkpoint, DECODED | {"dead_letters": True})
    frame = records.frame(spark, includeHeaders="true")
    finish(way.append(frame, sink))
    rewind(checkpoint)
    finish(way.append(frame, sink))
    stored = observer.execute("SELECT id, amount::text, at AT TIME ZONE 'UTC', info::text FROM orders").fetchall()
    assert [(row[0], row[1], str(row[2]), row[3]) for row in stored] == [
        (9007199254740993, "12.50", "2026-01-31 11:00:00", '{"a": [1.0], "b": 1}')
    ]
    letters = observer.execute(
        "SELECT record_value, record_key, record_headers, column_name, code, position - 'timestamp' "
        "FROM pgonce.dead_letters ORDER BY position -> 'partition', position -> 'offset'"
    ).fetchall()
    at = {"topic": records.name}
    assert letters == [
        (b'{"id": 2, "amount": "12,50"}', b"two", [["trace", "YWJj"]], "amount", "RECORD_UNDECODED",
         at | {"partition": 0, "offset": 1}),
        (b'{"id": 4, "at": "2026-01-31T12:00:00"}', None, None, "at", "RECORD_UNDECODED",
         at | {"partition": 0, "offset": 2}),
        (b"not JSON", None, None, None, "RECORD_UNDECODED", at | {"partition": 1, "offset": 0}),
    ]  # fmt: skip


@pytest.mark.parametrize("way", by_way([by_name(name) for name in NAMES], NAMES[:1]))
def test_a_bad_record_stops_the_batch_by_its_place(spark, way, records, create, url, checkpoint, observer):
    """Without dead letters the error names topic, partition, offset and the reason, and nothing is written."""
    create("id bigint")
    records.send({"id": 1})
    records.send({"id": "x"})
    with pytest.raises(Exception, match=r"partition 0, offset 1\) cannot be decoded: Field 'id'"):
        finish(way.append(records.frame(spark), Sink(url, "orders", checkpoint, DECODED)))
    assert observer.execute("SELECT count(*) FROM orders").fetchone() == (0,)


@pytest.mark.thorough
def test_of_one_key_the_record_with_the_greatest_offset_wins(spark, records, create, url, checkpoint, observer):
    """The order of a key's records in their partition is the order of its changes, whichever task reads them."""
    create("id bigint PRIMARY KEY, state text")
    for number in range(40):
        records.send({"id": number % 4, "state": f"number {number}"}, partition=number % 2)
    records.send({"id": 5, "state": None})
    sink = Sink(url, "orders", checkpoint, DECODED | {"mode": "upsert"})
    finish(by_name("inline").append(records.frame(spark, minPartitions="7"), sink))
    assert observer.execute("SELECT * FROM orders ORDER BY id").fetchall() == [
        *((key, f"number {36 + key}") for key in range(4)),
        (5, None),
    ]


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_checkpoint_goes_on_at_the_stored_positions(spark, way, records, create, url, tmp_path, observer):
    """With `replaces`, the records that are stored are read again and left out, the bad ones too."""
    create("id bigint")
    for number in range(6):
        records.send({"id": number} if number != 4 else b"bad", partition=number % 2)
    settings = DECODED | {"dead_letters": True}
    finish(way.append(records.frame(spark), Sink(url, "orders", str(tmp_path / "lost"), settings)))
    records.send({"id": 7})
    (query_id,) = observer.execute("SELECT query_id FROM pgonce.writers").fetchone()
    again = Sink(url, "orders", str(tmp_path / "new"), settings | {"replaces": query_id})
    finish(way.append(records.frame(spark), again))
    assert observer.execute("SELECT array_agg(id ORDER BY id) FROM orders").fetchone() == ([0, 1, 2, 3, 5, 7],)
    assert observer.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (1,)


@pytest.mark.thorough
def test_what_kafka_knows_of_a_record_goes_into_columns(spark, records, create, url, checkpoint, observer):
    """On request; of several headers with one name, the last."""
    create("id bigint, sent_at timestamptz, trace text, raw bytea, place text")
    records.send({"id": 1}, headers=[("trace", b"old"), ("trace", b"new")], key=b"\xff")
    known = {"sent_at": "timestamp", "trace": "headers.trace", "raw": "key", "place": "topic"}
    sink = Sink(url, "orders", checkpoint, DECODED | {"kafka_columns": json.dumps(known)})
    finish(by_name("inline").append(records.frame(spark, includeHeaders="true"), sink))
    found = observer.execute("SELECT id, now() - sent_at < '1 hour', trace, raw, place FROM orders").fetchall()
    assert found == [(1, True, "new", b"\xff", records.name)]


def test_a_letter_is_decoded_again_for_the_table_as_it_is_then(spark, records, create, url, checkpoint, observer):
    """So a replay writes it once the table, or the record in the letter, is mended."""
    create("id integer, at timestamptz")
    records.send({"id": 3_000_000_000, "at": "2026-01-31T12:00:00Z"})
    records.send({"id": 2, "at": "yesterday"})
    sink = Sink(url, "orders", checkpoint, DECODED | {"dead_letters": True, "max_dead_letters": 5})
    records.send({"id": 1})
    finish(by_name("inline").append(records.frame(spark), sink))
    (query_id,) = observer.execute("SELECT query_id FROM pgonce.writers").fetchone()
    choice = chosen_letters(url, query_id)
    with pytest.raises(RecoveryError, match=r"DEAD_LETTER_UNMENDED.* decoded either: \d+\."):
        replay_letters(choice, url)
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE orders ALTER id TYPE bigint")
        mended = b'{"id": 2, "at": "2026-01-30T12:00:00Z"}'
        connection.execute(
            "UPDATE pgonce.dead_letters SET record_value = %s WHERE column_name = 'at'", [mended], binary=True
        )
    replay_letters(choice, url)
    stored = observer.execute("SELECT id, at::date::text FROM orders ORDER BY id").fetchall()
    assert stored == [(1, None), (2, "2026-01-30"), (3_000_000_000, "2026-01-31")]
    assert observer.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (0,)


def test_a_batch_job_decodes_a_range_of_a_topic(spark, records, create, url, observer):
    """As a stream does; the key is skipped when it comes again."""
    create("id bigint, city text, created timestamptz DEFAULT now()")
    records.send({"id": 1, "home": {"city": "Ulm"}})
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", records.servers)
    options = {"url": url, "table": "orders", "batchKey": "one", "decode": "json", "columns": '{"city": "home.city"}'}
    for _ in range(2):
        frame = reader.option("subscribe", records.name).load()
        frame.write.format("pgonce").mode("append").options(**options).save()
    assert observer.execute("SELECT id, city, created IS NOT NULL FROM orders").fetchall() == [(1, "Ulm", True)]


@pytest.mark.parametrize(
    "on_executors",
    [False, pytest.param(True, marks=pytest.mark.thorough)],
    ids=["driver", "executors"],
)
def test_one_call_brings_a_topic_into_a_table(spark, on_executors, records, create, url, checkpoint, observer):
    """It reads from the beginning, proposes a table that is missing, and knows the topic's id."""
    records.send({"id": 1, "at": "2026-01-31T12:00:00Z", "amount": 1.5, "tags": ["a"]})

    orders = {"table": "orders", "decode": "json", "mode": "upsert", "keys": ["id"], "on_executors": on_executors}
    start = partial(records.into_table, spark, url, checkpoint, trigger={"availableNow": True}, **orders)
    with pytest.raises(TargetError, match="CREATE TABLE") as missing:
        start()
    assert missing.value.code == "TARGET_MISSING"
    create_table = missing.value.remedy[missing.value.remedy.index("CREATE TABLE") :]
    with psycopg.connect(url) as connection:
        connection.execute(create_table)
    assert start().awaitTermination(60)
    records.send({"id": 2, "at": None, "amount": 2, "tags": None})
    assert start().awaitTermination(60)
    rows = observer.execute("SELECT id, amount, tags FROM orders ORDER BY id").fetchall()
    assert rows == [(1, Decimal("1.5"), ["a"]), (2, 2, None)]
    assert observer.execute("SELECT count(*) FROM pgonce.batches").fetchone() == (2,)


def test_a_password_from_a_function_is_asked_for_before_the_start_too(
    spark, records, create, url, checkpoint, monkeypatch, tmp_path
):
    """The look at the table, and the recovery that a restart needs, log in as the query does."""
    create("id bigint PRIMARY KEY")
    found = []
    password = tmp_path / "password"
    password.write_text("any")
    monkeypatch.setenv(rotating_password.FILE, str(password))
    monkeypatch.setattr("pgonce.topic_query.recover_and_start", lambda _, __, ledger: found.append(ledger))
    asked = "support.rotating_password:asked"
    records.into_table(spark, url, checkpoint, table="orders", decode="json", password_from=asked)
    assert password.with_suffix(".asked").exists()
    assert [source_of(ledger) for ledger in found] == [asked]
