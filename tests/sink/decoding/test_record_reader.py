"""
Every record is one row with its own position, or is refused and kept whole.

Covers: sink.decoding, sink.decoding.record_keys.
"""

from __future__ import annotations

import json
from base64 import b64encode

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from support.decoded_rows import KAFKA, SENT_AT, commit_records, kafka_batch, where_records_go, write_records
from support.with_rooms import reader_of

from pgonce.dead_letters.chosen_letters import chosen_letters
from pgonce.dead_letters.replay import replay_letters
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import ConfigurationError, TargetError
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.decoding.json_records import DOUBLED
from pgonce.sink.encoding.unfit_rows import Record
from pgonce.sink.errors import EncodingError


@pytest.fixture
def table(create):
    """A table with a key, and one column more."""
    create("id bigint PRIMARY KEY, name text")


def values_of(*rows):
    """The values of records with these ids and names; bytes are values by themselves."""
    return [row if row is None or isinstance(row, bytes) else json.dumps(row).encode() for row in rows]


def test_each_row_has_the_position_of_its_record(table, url):
    """Also one that is refused, so that it counts where the batch reaches."""
    reader = reader_of(where_records_go(table="t"), KAFKA, settings=CommitSettings(url))
    rows = reader.read(kafka_batch(values_of({"id": 1}, b"bad", {"id": 3}), partitions=[7, 8, 9])).to_pylist()
    places = [(row["pgonce_topic"], row["pgonce_partition"], row["pgonce_position"]) for row in rows]
    assert places == [("t", 7, 0), ("t", 8, 1), ("t", 9, 2)]
    assert [row["id"] for row in rows] == [1, None, 3]


def test_a_record_that_cannot_be_decoded_is_put_aside_whole(table, url, stored):
    """With its bytes, its place and its time; nothing of it is in the table."""
    aside = write_records(url, values_of({"id": 1, "name": "a"}, b"bad\xff"), record_keys=[None, b"k"])
    assert stored() == [(1, "a")]
    (letter,) = aside
    assert (letter.row_data, letter.place, letter.code) == ("{}", ("t", 0, 1), "RECORD_UNDECODED")
    sent_at = str(int(SENT_AT.timestamp()) * 1_000_000)
    assert letter.record == Record(b64encode(b"k").decode(), b64encode(b"bad\xff").decode(), sent_at, None)


def test_more_bad_records_than_may_be_put_aside_stop_the_batch(table, url, stored):
    """The error names the place of the first one that is too many."""
    with pytest.raises(EncodingError, match=r"partition 0, offset 2\) cannot be decoded: It is not a JSON object"):
        write_records(url, values_of(b"a", {"id": 1}, b"b"), most=1)
    assert stored() == []


@pytest.mark.parametrize("mode", ["upsert", "apply"])
def test_the_last_record_of_a_key_wins(mode, table, url, stored):
    """Its partition's order is that of the changes, also within one batch."""
    write_records(url, values_of({"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": "c"}), mode=mode)
    assert stored() == [(1, "b"), (2, "c")]


@pytest.mark.parametrize("mode", ["upsert", "apply"])
def test_records_of_a_key_from_two_partitions_have_no_order(mode, table, url, stored):
    """Unless a column says which is the later one; other keys may come from any partition."""
    values = values_of({"id": 1, "name": "a"}, {"id": 1, "name": "b"})
    with pytest.raises(TargetError, match="DOUBLED_KEYS.*2 rows have id = 1"):
        write_records(url, values, partitions=[0, 1], mode=mode)
    write_records(url, values, partitions=[0, 1], mode=mode, order_by="name")
    write_records(url, values_of({"id": 3, "name": "c"}, {"id": 4, "name": "d"}), partitions=[0, 1], mode=mode)
    assert stored() == [(1, "b"), (3, "c"), (4, "d")]


def test_a_record_without_a_value_deletes_by_its_key(table, url, stored):
    """The text of the key is read as its column; one that does not fit is a bad record."""
    write_records(url, values_of({"id": 1, "name": "a"}, {"id": 2, "name": "b"}))
    aside = write_records(url, [None, None, None], record_keys=[b"1", b"two", None], mode="apply")
    assert stored() == [(2, "b")]
    assert [row.message for row in aside] == [
        "Its key does not fit: Input data was truncated.",
        "Neither its value nor its key has a value for id.",
    ]


def test_a_key_that_is_an_object_fills_what_the_value_lacks(table, url, stored):
    """A value that has the key counts; a name twice in the key is refused."""
    keys = [b'{"id":1,"x":2}', b'{"id":7}', b'{"id":3,"id":4}', b'{"x":1}', b"5"]
    values = values_of({"name": "a"}, {"id": 2, "name": "b"}, {"name": "c"}, {"name": "d"}, {"name": "e"})
    aside = write_records(url, values, record_keys=keys, mode="upsert", decode_key="json")
    assert stored() == [(1, "a"), (2, "b")]
    assert [row.message for row in aside] == [
        f"Of its key: {DOUBLED}",
        "Neither its value nor its key has a value for id.",
        "Of its key: It is not a JSON object: Expected `object`, got `int`.",
    ]


def test_a_field_may_say_what_deletes(table, url, stored):
    """With deleteWhen; null does not say it."""
    write_records(url, values_of({"id": 1, "name": "a"}))
    changes = values_of({"id": 1, "gone": True}, {"id": 2, "name": "b", "gone": False}, {"id": 3, "name": "c"}, None)
    keys = [None, None, None, b"2"]
    aside = write_records(url, changes, record_keys=keys, mode="apply", delete_when="gone")
    assert stored() == []
    assert [row.message for row in aside] == ["It does not say whether it deletes."]


def test_a_record_without_a_value_is_bad_or_left_out(table, url, stored):
    """Where it cannot delete."""
    aside = write_records(url, values_of({"id": 1}, None))
    assert [row.message for row in aside] == ["It has no value."]
    assert write_records(url, values_of(None, {"id": 2}, None), null_values="ignore") == []
    assert stored() == [(1, None), (2, None)]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("uuid", ["00000000-0000-0000-0000-000000000001"] * 2 + ["none"]),
        ("bigint", [1, 1, 2]),
        ("bigint", [1, 1, None]),
    ],
    ids=["a key that does not fit", "a text that is too long", "a key that is null"],
)
def test_two_partitions_are_told_apart_where_another_row_is_bad(kind, keys, url, stored, create):
    """Rows that are written in their turn, because one is refused, have no more order than before."""
    create(f"id {kind} UNIQUE, name varchar(3)")
    names = ["a", "b", "long one"]
    values = values_of(*({"id": key, "name": name} for key, name in zip(keys, names, strict=True)))
    with pytest.raises(TargetError, match="DOUBLED_KEYS"):
        commit_records(url, values, partitions=[0, 1, 0], mode="upsert", keys=["id"])
    assert stored() == []
    assert commit_records(url, values, partitions=[0, 0, 0], mode="upsert", keys=["id"]) is Verdict.NEW
    assert [name for _, name in stored()] == ["b"]


def test_a_time_that_python_does_not_have_is_no_error(table, url):
    """The time of a record is the producer's, and may be anything; it is kept as a number."""
    reader = reader_of(where_records_go(table="t"), KAFKA, settings=CommitSettings(url))
    batch = kafka_batch([b"bad"])
    far = pa.array([1_769_860_800_000_000_000], pa.int64()).cast(pa.timestamp("us", "GMT+8"))
    batch = batch.set_column(batch.schema.get_field_index("timestamp"), "timestamp", far)
    assert reader.read(batch).column("pgonce_refused")[0]["time"].as_py() == "1769860800000000000"


def test_a_field_without_a_column_says_what_would_help(url, create):
    """A name with a point is a name; a part of an object needs its path; a column with a default is named."""
    create("id bigint, city text, made_at date DEFAULT now()")
    for value, words in (
        (b'{"user.name":"a"}', 'ADD COLUMN "user.name" text;'),
        (b'{"made_at":"2026-01-31"}', 'name it in columns, as in {"made_at": "made_at"}'),
        (b'{"home":{"city":"a","zip":1}}', 'as in {"zip": "home.zip"}'),
        (b'{"":1}', "No column can have this name"),
    ):
        with pytest.raises(TargetError, match=words) as refused:
            write_records(url, [value], columns={"city": "home.city"})
        assert "zip" not in refused.value.kept


NO_JSONB = [rb'"\u0000"', rb'{"a\u0000":1}', b"1e999999", b"[1,-1.5E-20000]", b"1" * 7000]
JSONB = [rb'"\\u0000"', b'"code e12345"', b"1e9999", rb'{"e99999": "\\\\u0000"}']


@pytest.mark.parametrize("doc", [*NO_JSONB, *JSONB], ids=range(len(NO_JSONB + JSONB)))
def test_json_that_jsonb_does_not_hold_is_a_bad_record(doc, url, create):
    """Or the COPY of all rows would end at it. A backslash before the NUL's escape, and digits in a text, are held."""
    create("id int, doc jsonb")
    letters = write_records(url, [b'{"id":1,"doc":1}', b'{"id":2,"doc":%s}' % doc])
    assert [(one.place[2], one.column_name) for one in letters] == ([(1, "doc")] if doc in NO_JSONB else [])


def test_a_letter_with_json_can_be_replayed_as_it_is(url, stored, create):
    """Postgres has refused its row for another column."""
    create("id bigint CHECK (id < 9), name text, doc jsonb")
    values = values_of({"id": 1, "name": "a", "doc": {}}, {"id": 9, "name": "b", "doc": {"a": [1, "x"]}})
    commit_records(url, values)
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE t DROP CONSTRAINT t_id_check")
    replay_letters(chosen_letters(url, "q1"), url)
    assert stored() == [(1, "a", {}), (9, "b", {"a": [1, "x"]})]


def test_a_header_is_a_text_or_a_bad_record(url, create):
    """Of several with one name, the last; a record may have none."""
    create("id bigint, trace text")
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    of_rows = [[("trace", b"a"), ("trace", "ä".encode()), ("other", b"b")], [("trace", b"\xff")], [("trace", b"a\0")]]
    headers = [[{"key": name, "value": value} for name, value in of_row] for of_row in of_rows]
    batch = kafka_batch(values_of(*[{"id": 1}] * 4)).append_column("headers", pa.array([*headers, None], kind))
    one = t.StructType([t.StructField("key", t.StringType()), t.StructField("value", t.BinaryType())])
    frame = t.StructType([*KAFKA.fields, t.StructField("headers", t.ArrayType(one))])
    where = where_records_go(table="t", kafka_columns={"trace": "headers.trace"})
    rows = reader_of(where, frame, settings=CommitSettings(url)).read(batch).to_pylist()
    assert [row["trace"] for row in rows] == ["ä", None, None, None]
    bad = "Field 'headers.trace' is not a text in UTF-8 without NUL."
    assert [row["pgonce_refused"] and row["pgonce_refused"]["message"] for row in rows] == [None, bad, bad, None]
    assert [row["pgonce_refused"]["column"] for row in rows[1:3]] == ["trace", "trace"]


@pytest.mark.parametrize(
    ("frame", "options"),
    [
        (t.StructType(KAFKA.fields[1:]), {}),
        (t.StructType([t.StructField("value", t.StringType()), *KAFKA.fields[2:]]), {}),
        (KAFKA, {"kafka_columns": {"trace": "headers.trace"}}),
    ],
    ids=["without a key", "with a text as value", "without headers"],
)
def test_another_frame_is_refused(frame, options):
    """Before a row moves; a header needs the source's option includeHeaders."""
    with pytest.raises(ConfigurationError, match="CHANGE_COLUMNS"):
        reader_of(where_records_go(table="t", **options), frame)


def test_the_commit_worker_reads_no_record_and_asks_for_no_table():
    """Parcels say which columns their rows have."""
    assert reader_of(where_records_go(table="t"), KAFKA, with_positions=False).struct_type.fields == []
