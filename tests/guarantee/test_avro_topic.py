"""
A topic of Avro records into a table, by a real registry: each once, and a new version of the schema needs no new start.

Covers: sink.decoding.records_with_schemas.
"""

from __future__ import annotations

import psycopg
import pytest
from support.avro_records import Subject
from support.fixtures.driver import wait_until
from support.query_runs import finish, rewind
from support.ways_in import TABLE_WAYS, Sink

from pgonce.dead_letters.chosen_letters import chosen_letters
from pgonce.dead_letters.replay import replay_letters
from pgonce.offsets_store.errors import RecoveryError

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

ID, NAME = ("id", "long"), ("name", "string")


@pytest.fixture
def subject(schema_registry, records):
    """The subject of its values."""
    return Subject(schema_registry, f"{records.name}-value")


@pytest.mark.parametrize(
    "on_executors", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["driver", "executors"]
)
def test_a_new_version_gets_its_column_while_the_query_runs(
    spark, on_executors, records, subject, url, checkpoint, observer
):
    """The table is created by the subject, and grows with it; records that come again add nothing."""
    people = {
        "table": "people", "decode": "avro", "decode_key": "avro", "mode": "apply", "keys": ["id"],
        "create_table": True, "schema_evolution": "addColumns", "schema_registry_url": subject.url,
        "on_executors": on_executors,
    }  # fmt: skip

    def stored():
        return observer.execute("SELECT * FROM people ORDER BY id", prepare=False).fetchall()

    key = Subject(subject.registry, f"{records.name}-key").record(1, kind="long")
    records.send(subject.record({"id": 1, "name": "a"}, ID, NAME), key=key)
    query = records.into_table(spark, url, checkpoint, trigger={"processingTime": "0 seconds"}, **people)
    try:
        is_there = "SELECT to_regclass('people') IS NOT NULL"
        assert wait_until(lambda: observer.execute(is_there).fetchone() == (True,) and stored() == [(1, "a")], 60)
        records.send(subject.record({"id": 2, "name": "b", "city": "Ulm"}, ID, NAME, ("city", ["null", "string"])))
        records.send(subject.record({"id": 3, "name": "c"}, ID, NAME), partition=1)
        records.send(None, key=key)
        assert wait_until(lambda: stored() == [(2, "b", "Ulm"), (3, "c", None)], 60)
    finally:
        query.stop()
    rewind(checkpoint)
    again = records.into_table(spark, url, checkpoint, trigger={"availableNow": True}, **people)
    assert again.awaitTermination(60)
    assert stored() == [(2, "b", "Ulm"), (3, "c", None)]


def test_a_letter_is_decoded_again_by_the_registry(spark, records, subject, url, checkpoint, observer, monkeypatch):
    """A replay is told where it is, since no letter has a login."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE people (id integer, name text)")
    records.send(subject.record({"id": 3_000_000_000, "name": "a"}, ID, NAME))
    records.send(subject.record({"id": 1, "name": "b"}, ID, NAME))
    settings = {
        "decode": "avro",
        "schema_registry_url": subject.url.replace("//", "//ann:secret@"),
        "dead_letters": True,
    }
    way = next(way for way in TABLE_WAYS if way.name == "inline")
    finish(way.append(records.frame(spark), Sink(url, "people", checkpoint, settings)))
    assert observer.execute("SELECT id FROM people").fetchall() == [(1,)]
    assert observer.execute(
        "SELECT count(*) FROM pgonce.dead_letters WHERE destination::text ~ 'secret'"
    ).fetchone() == (0,)
    (query_id,) = observer.execute("SELECT query_id FROM pgonce.writers").fetchone()
    choice = chosen_letters(url, query_id)
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE people ALTER id TYPE bigint")
    with pytest.raises(RecoveryError, match="PGONCE_SCHEMA_REGISTRY_URL"):
        replay_letters(choice, url)
    monkeypatch.setenv("PGONCE_SCHEMA_REGISTRY_URL", subject.url)
    replay_letters(choice, url)
    assert observer.execute("SELECT * FROM people ORDER BY id").fetchall() == [(1, "b"), (3_000_000_000, "a")]
