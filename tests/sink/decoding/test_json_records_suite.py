"""
The JSON parsing test suite by nst (MIT), with each file as the value of a field: what is taken is what Postgres takes.

Its names say what a parser must do: accept (y), refuse (n), or either (i). Where Postgres decides otherwise, it counts.
"""

from __future__ import annotations

import json
from base64 import b64decode
from pathlib import Path

import psycopg
import pytest
from pyspark.sql import types as t

from pgonce.sink.decoding.fields import DecodedColumn, Form
from pgonce.sink.decoding.json_records import JsonRecords

SUITE = json.loads((Path(__file__).parent / "json_suite.json").read_text())["files"]
RECORDS = JsonRecords([DecodedColumn("j", ("j",), t.StringType(), Form.JSON)])
WHOLE = JsonRecords([], refuses=frozenset())
# An object with a name twice loses one of the two values, in jsonb and nearly everywhere.
DOUBLED = {"y_object_duplicated_key", "y_object_duplicated_key_and_value"}


def bytes_of(name):
    """The file."""
    found = SUITE[name]
    if isinstance(found, str):
        return b64decode(found)
    return b64decode(found["of"]) * found["times"] + b64decode(found["end"])


def taken(value):
    """The JSON that is decoded of a field with this value; None if the record is refused."""
    decoded = RECORDS.decode([b'{"j":' + value + b"}"])
    return None if decoded.refused else decoded.arrays[0][0].as_py() or "null"


@pytest.fixture(scope="module")
def as_postgres(postgres_server):
    """The text of a JSON value as Postgres' type has it; None if it refuses it."""
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:

        def read(value, kind):
            try:
                query = f"SELECT convert_from(%s, 'UTF8')::{kind}::text"
                return connection.execute(query, [value], binary=True).fetchone()[0]
            except psycopg.Error:
                return None

        yield read


@pytest.mark.parametrize("name", SUITE)
def test_a_value_is_taken_as_postgres_takes_it(name, as_postgres):
    """What must be refused is refused; what is taken, Postgres takes as json, and it keeps its text."""
    value = bytes_of(name)
    found = taken(value)
    if name.startswith("n_"):
        assert found is None
    if found is not None:
        assert as_postgres(value, "json").strip() == found.strip()
        assert as_postgres(found.encode(), "jsonb") == as_postgres(value, "jsonb")
    elif as_postgres(value, "jsonb") is not None:
        assert name in DOUBLED


@pytest.mark.parametrize("name", SUITE)
def test_a_record_is_one_object(name):
    """A record that is anything else is refused, and so is one that only begins with an object."""
    value = bytes_of(name)
    decoded = WHOLE.decode([value, b"{}"])
    is_object = isinstance(_loaded(value), dict)
    assert set(decoded.refused) <= {0}
    if not is_object or name.startswith("n_"):
        assert set(decoded.refused) == {0}


def _loaded(value):
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None
