"""A table is proposed that holds the records which were looked at."""

from __future__ import annotations

import json

import psycopg
from psycopg import sql
from support.decoded_rows import write_records

from pgonce.sink.decoding.proposed_table import create_statement

T = sql.Identifier("t")


def test_a_type_holds_all_values_of_its_field(url):
    """And the records can be written into the table."""
    first = {"id": 1, "n": 1, "at": "2026-01-31T12:00:00Z", "day": "2026-01-31", "any": 1, "on": True}
    second = {"id": 2, "n": 1.5, "at": None, "any": "a", "tags": ["x"], "local": "2026-01-31T12:00"}
    values = [json.dumps(record).encode() for record in (first, second)]
    statement = create_statement(T, [*values, None, b"bad", b"[]"], ["id"])
    assert statement == (
        'CREATE TABLE "t" ("id" bigint, "n" numeric, "at" timestamptz, "day" date, "any" jsonb, "on" boolean, '
        '"tags" jsonb, "local" timestamp, PRIMARY KEY ("id"))'
    )
    with psycopg.connect(url) as connection:
        connection.execute(statement)
    assert write_records(url, values) == []


def test_nothing_is_proposed_without_a_record():
    """A table without columns would hold nothing."""
    assert create_statement(T, [None, b"bad"]) == ""
