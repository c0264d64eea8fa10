"""
A hypertable of TimescaleDB takes rows as a table does, and its chunks belong to it.

Covers: sink.writing.bad_rows.about_a_row.
"""

from __future__ import annotations

import datetime as dt

import psycopg
import pytest
from pyspark.sql import types as t
from support.typed_rows import commit_typed

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.options.destination import destination

COLUMNS = {"sensor": t.StringType(), "at": t.TimestampType(), "value": t.DoubleType()}


def on(day):
    """The beginning of a day: each has a chunk of its own."""
    return dt.datetime(2026, 10, day, tzinfo=dt.timezone.utc)


@pytest.fixture
def hypertable(bare_url):
    """A database with a ledger, and the hypertable ``readings``."""
    url = bare_url("timescaledb")
    ensure_ledger(url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE EXTENSION timescaledb")
        connection.execute(
            "CREATE TABLE readings (sensor text NOT NULL, at timestamptz NOT NULL, value float8 CHECK (value < 1000), "
            "PRIMARY KEY (sensor, at))"
        )
        connection.execute("SELECT create_hypertable('readings', by_range('at', interval '1 day'))")
    return url


def rows(url, query="SELECT sensor, value FROM readings ORDER BY 1, 2"):
    """What is stored."""
    with psycopg.connect(url) as connection:
        return connection.execute(query).fetchall()


def test_a_row_of_a_known_key_is_replaced_in_its_chunk(hypertable):
    """By a small batch and by one that is large enough for MERGE, which does not look into chunks."""
    into = destination("readings", "upsert")
    many = [(f"s{number}", on(1 + number % 5), 1.0) for number in range(20_000)]
    commit_typed(hypertable, 0, into, COLUMNS, [("s1", on(2), 0.0)])
    commit_typed(hypertable, 1, into, COLUMNS, many)
    commit_typed(hypertable, 2, into, COLUMNS, [("s1", on(2), 2.0)])
    assert rows(hypertable, "SELECT count(*), sum(value) FROM readings") == [(20_000, 20_001.0)]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("day", [1, 9], ids=["stored chunk", "new chunk"])
@pytest.mark.parametrize("bad", [(None, 1.0), ("bad", 5000.0)], ids=["NULL", "CHECK"])
def test_a_row_that_a_chunk_refuses_is_put_aside(mode, day, bad, hypertable):
    """Also where it is the first of its chunk, which the refusal takes away again."""
    into = destination("readings", mode, dead_letters=True)
    commit_typed(hypertable, 0, into, COLUMNS, [("a", on(1), 1.0)])
    commit_typed(hypertable, 1, into, COLUMNS, [("b", on(2), 2.0), (bad[0], on(day), bad[1])])
    assert rows(hypertable) == [("a", 1.0), ("b", 2.0)]
    assert rows(hypertable, "SELECT count(*) FROM pgonce.dead_letters") == [(1,)]


def test_a_row_that_is_there_already_is_put_aside(hypertable):
    """The unique index that refuses it is the chunk's."""
    into = destination("readings", dead_letters=True)
    commit_typed(hypertable, 0, into, COLUMNS, [("a", on(1), 1.0)])
    commit_typed(hypertable, 1, into, COLUMNS, [("a", on(1), 7.0), ("b", on(1), 2.0)])
    assert rows(hypertable) == [("a", 1.0), ("b", 2.0)]
    assert rows(hypertable, "SELECT row_data->>'value' FROM pgonce.dead_letters") == [("7",)]


def test_a_chunk_of_another_hypertable_is_not_its_own(hypertable):
    """A trigger writes into it, and what is refused there stops the batch."""
    with psycopg.connect(hypertable) as connection:
        connection.execute("CREATE TABLE log (at timestamptz NOT NULL, value float8 CHECK (value < 10))")
        connection.execute("SELECT create_hypertable('log', by_range('at'))")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "INSERT INTO log VALUES (NEW.at, NEW.value); RETURN NEW; END $$; "
            "CREATE TRIGGER note BEFORE INSERT ON readings FOR EACH ROW EXECUTE FUNCTION note()"
        )
    with pytest.raises(TargetError, match=r"\[CHECK_VIOLATION\]"):
        commit_typed(hypertable, 0, destination("readings", dead_letters=True), COLUMNS, [("a", on(1), 50.0)])
    assert rows(hypertable) == []


def test_what_would_look_for_stored_rows_is_refused(hypertable):
    """From the first chunk on."""
    commit_typed(hypertable, 0, destination("readings"), COLUMNS, [("a", on(1), 1.0)])
    newer = destination("readings", "upsert", order_by="value", only_newer=True)
    for into in (destination("readings", "complete"), newer):
        with pytest.raises(TargetError, match=r"\[ROWS_IN_CHILDREN\]"):
            commit_typed(hypertable, 1, into, COLUMNS, [("a", on(1), 2.0)])
    assert rows(hypertable) == [("a", 1.0)]
