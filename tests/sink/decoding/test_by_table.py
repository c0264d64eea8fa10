"""
The table says which fields a record has, and as what each one is read.

Covers: sink.decoding.fields.
"""

from __future__ import annotations

import psycopg
import pytest
from support.decoded_rows import KAFKA, where_records_go, write_records
from support.with_rooms import reader_of

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import ConfigurationError, ConnectError, TargetError
from pgonce.sink.decoding import by_table
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.writing.checked_table import plan_columns
from pgonce.sink.writing.table.catalogue import look_up_table


def reader(url, **options):
    """What reads records for that table."""
    return reader_of(
        where_records_go(**{"table": "t", **options}), KAFKA, settings=CommitSettings(url, retry_timeout=5)
    )


def test_a_column_with_a_default_is_left_to_postgres(url, create, stored):
    """Unless the user names it: a record that has such a field is refused, so its value is not left out in silence."""
    create("id bigint, at timestamptz DEFAULT '2020-01-01Z', n int GENERATED ALWAYS AS IDENTITY")
    write_records(url, [b'{"id":1}'])
    assert stored("t::text")[0][0].startswith('(1,"2020-01-01')
    with pytest.raises(TargetError, match="COLUMN_UNKNOWN"):
        write_records(url, [b'{"id":1,"at":"2026-01-31T00:00:00Z"}'])
    write_records(url, [b'{"id":2,"at":"2026-01-31T00:00:00Z"}'], columns={"at": "at"})
    assert len(stored("t::text")) == 2


def test_types_of_the_users_and_texts_are_read_by_postgres(url, create, stored):
    """An enum, a domain and a range get the text that the record has; one that they refuse is a bad row."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE DOMAIN even AS int CHECK (value % 2 = 0)")
    create("id even, mood mood, during int4range, at time, moods mood[]")
    write_records(url, [b'{"id":2,"mood":"good","during":"[1,3)","at":"12:30:00","moods":["bad",null]}'])
    assert stored("t::text") == [('(2,good,"[1,3)",12:30:00,"{bad,NULL}")',)]
    for bad in (b'{"id":1}', b'{"mood":"none"}', b'{"at":"12:30:00.1234567"}'):
        with pytest.raises(psycopg.Error):
            write_records(url, [bad])


def test_a_column_that_no_field_can_be_read_for_is_refused_if_it_is_needed(url, create):
    """Otherwise it is as if the table did not have it."""
    create("id bigint, price money")
    write_records(url, [b'{"id":1}'])
    with pytest.raises(TargetError, match="COLUMN_UNKNOWN"):
        write_records(url, [b'{"id":1,"price":"$1"}'])
    with pytest.raises(TargetError, match="TYPE_MISMATCH"):
        reader(url, columns={"price": "price"})
    with psycopg.connect(url) as connection:
        connection.execute("TRUNCATE t; ALTER TABLE t ALTER price SET NOT NULL")
    with pytest.raises(TargetError, match="TYPE_MISMATCH"):
        reader(url)


def test_a_name_that_no_reader_of_json_has_is_no_field(url, create, stored):
    """The column is as if it could not be read for another reason."""
    create('id bigint, "a""b" int')
    write_records(url, [b'{"id":1}'])
    assert stored("t::text") == [("(1,)",)]


def test_a_key_with_a_default_is_left_to_postgres_where_rows_are_appended(url, create, stored):
    """It tells rows apart only where they are written by key."""
    create("id bigserial PRIMARY KEY, name text")
    write_records(url, [b'{"name":"a"}'])
    assert stored("t::text") == [("(1,a)",)]
    assert [row.message for row in write_records(url, [b'{"name":"b"}'], mode="upsert")] == [
        "Field 'id' does not fit: it is missing."
    ]


def test_a_delete_needs_no_more_than_its_key(url, create, stored):
    """Where a field says that a row deletes, and for the column that a soft delete sets."""
    create("id bigint PRIMARY KEY, name text NOT NULL, gone boolean NOT NULL DEFAULT false")
    write_records(url, [b'{"id":1,"name":"a"}', b'{"id":2,"name":"b"}'])
    assert write_records(url, [b'{"id":1,"out":true}'], mode="apply", delete_when="out") == []
    assert write_records(url, [None], record_keys=[b"2"], mode="apply", deletes="soft:gone") == []
    assert stored("t::text") == [("(2,b,t)",)]


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        ("id bigint PRIMARY KEY, name text", {"mode": "apply", "delete_when": "name"}, "BAD_OPTION"),
        ("id bigint PRIMARY KEY", {"mode": "apply", "delete_when": 'a"b'}, "BAD_OPTION"),
        ("id int[] PRIMARY KEY", {"mode": "upsert", "decode_key": "json"}, "BAD_OPTION"),
        ("a int, b int, PRIMARY KEY (a, b)",
         {"mode": "apply", "decode_key": "json", "columns": {"a": "x.id", "b": "y.id"}}, "BAD_OPTION"),
        ("id bigint, pgonce_refused int", {}, "COLUMN_TWICE"),
        ("id bigint PRIMARY KEY, pgonce_operation text", {"mode": "apply", "change_feed": "debezium"}, "COLUMN_TWICE"),
        ("id bigserial", {}, "COLUMN_UNKNOWN"),
        ("id bigint", {"columns": {"x": "a.b"}}, "COLUMN_UNKNOWN"),
        ("id bigint", {"kafka_columns": {"x": "topic"}}, "COLUMN_UNKNOWN"),
        ("id bigint, x text", {"kafka_columns": {"x": "size"}}, "nothing that Kafka knows"),
        # Otherwise one of the columns would decide as what the field is read for both.
        *(("id bigint, home jsonb, city text", {"columns": paths}, "gets the field")
          for paths in ({"city": "home.city"}, {"city": "id"}, {"id": "x.y", "city": "x.y.z"})),
    ],
)  # fmt: skip
def test_what_cannot_be_decoded_for_is_refused_before_a_record_is_read(columns, options, says, url, create):
    """With the option, or the column, that stands in the way."""
    create(columns)
    with pytest.raises((ConfigurationError, TargetError), match=says):
        reader(url, **options)


def test_vectors_and_hstores_are_read(url_with):
    """A list of numbers, and an object of texts."""
    url = url_with("hstore")
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE t (id bigint, tags ext.hstore)")
        connection.commit()
        write_records(url, [b'{"id":1,"tags":{"a":"b","c":null}}', b'{"id":2}', b'{"id":3,"tags":{"a":1}}'])
        found = connection.execute("SELECT t::text FROM t ORDER BY 1").fetchall()
    assert found == [('(1,"""a""=>""b"", ""c""=>NULL")',), ("(2,)",)]


def test_a_text_can_be_only_one_key(url, create):
    """A table with two keys needs a key that is an object."""
    create("a int, b int, PRIMARY KEY (a, b)")
    with pytest.raises(ConfigurationError, match="reads one key, and public.t has a, b"):
        reader(url, mode="apply")
    assert reader(url, mode="apply", decode_key="json").struct_type


def test_a_type_that_changes_before_the_commit_is_refused_there(url, create):
    """Records that were decoded for one type are not written to another, which may read them otherwise."""
    create("id text")
    where = where_records_go(table="t")
    columns = encoded_columns(reader(url).struct_type)[:1]
    with psycopg.connect(url) as connection:
        _, table = look_up_table(connection, "t")
        assert plan_columns(table, columns, where)
        connection.execute("ALTER TABLE t ALTER id TYPE varchar(9)")
        _, table = look_up_table(connection, "t")
        with pytest.raises(TargetError, match="TYPE_MISMATCH.*altered meanwhile"):
            plan_columns(table, columns, where)


def test_a_server_that_is_away_for_a_moment_is_waited_for(url, monkeypatch, create):
    """As long as a commit would wait; a longer time ends the query."""
    create("id bigint")
    times, look = iter([True, True, False]), by_table.looking

    def away(to):
        if next(times, True):
            raise ConnectError("CONNECT_FAILED", "It is away.", "", "", may_pass=True)
        return look(to)

    monkeypatch.setattr(by_table, "looking", away)
    assert reader(url).struct_type.names[0] == "id"
    with pytest.raises(ConnectError):
        reader_of(where_records_go(table="t"), KAFKA, settings=CommitSettings(url, retry_timeout=0))


def test_a_table_that_is_missing_is_refused(url):
    """JSON does not say which types it should have."""
    with pytest.raises(TargetError, match="TARGET_MISSING"):
        reader(url)
