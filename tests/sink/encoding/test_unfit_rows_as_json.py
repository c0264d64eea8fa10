"""What the JSON object of a row says: Postgres reads every value back from it as the encoder would have written it."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from pyspark.sql import types as t
from support.spark_values import CASES, LISTED, NESTED, TEXTS, structured
from support.typed_rows import struct_of

from pgonce.sink.encoding.copy_encoder import HEADER, TRAILER, CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.encoding.unfit_rows import row_texts

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

OLD_INTERVAL = (2**31 - 1) * 3_600_000_000


def texts(data_type: t.DataType, array: pa.Array) -> list[str]:
    """The rows of a frame that has this one column, ``c``."""
    return row_texts([array], encoded_columns(struct_of({"c": data_type})))


def assert_read_back(connection: psycopg.Connection, data_type: t.DataType, array: pa.Array) -> None:
    """What Postgres reads from each row's JSON is what is encoded, as Postgres writes the type."""
    connection.rollback()
    struct = struct_of({"c": data_type})
    encoder = CopyEncoder(struct)
    encoded = sql.SQL(encoder.columns[0].postgres_type)
    create = "CREATE TEMP TABLE IF NOT EXISTS t (n int GENERATED ALWAYS AS IDENTITY, c {})"
    connection.execute(sql.SQL(create).format(encoded))
    connection.execute("SET extra_float_digits = 3")
    connection.commit()
    body = encoder.encode(pa.record_batch([array], names=["c"]))
    with connection.cursor().copy("COPY t (c) FROM STDIN (FORMAT binary)") as copy:
        copy.write(HEADER + body + TRAILER)
    # Compared as text, of which there is one for each value, with all digits of floats.
    query = (
        "SELECT t.c::text, r.c::text FROM (SELECT row_number() OVER (ORDER BY n) AS n, c FROM t) AS t "
        "JOIN unnest(%s::text[]) WITH ORDINALITY AS j (c, n) USING (n), jsonb_to_record(j.c::jsonb) AS r (c {}) "
        "ORDER BY n"
    )
    got = connection.execute(sql.SQL(query).format(encoded), [texts(data_type, array)]).fetchall()
    assert len(got) == len(array)
    assert [again for _, again in got] == [encoded for encoded, _ in got]


def readable(connection: psycopg.Connection, name: str) -> st.SearchStrategy[Any]:
    """The values of a case that Postgres can read from a text."""
    if name == "interval" and connection.info.server_version < 150000:
        # It reads hours into 32 bits, and refuses what it writes itself (22015).
        return st.integers(-OLD_INTERVAL, OLD_INTERVAL)
    return CASES[name].values


@pytest.mark.parametrize("name", CASES)
@quick
@given(data=st.data())
def test_every_value_is_read_back(connection: psycopg.Connection, name: str, data: st.DataObject) -> None:
    """A record that Postgres makes of the object has what the encoder would have written, nulls among it."""
    case = CASES[name]
    values = data.draw(st.lists(st.none() | readable(connection, name), max_size=12))
    assert_read_back(connection, case.data_type, case.array(values))


@pytest.mark.parametrize("name", LISTED)
@quick
@given(data=st.data())
def test_every_array_is_read_back(connection: psycopg.Connection, name: str, data: st.DataObject) -> None:
    """The same holds for arrays: null ones, empty ones and null elements stay apart."""
    case = LISTED[name]
    values = data.draw(st.lists(st.none() | st.lists(st.none() | readable(connection, name), max_size=5), max_size=6))
    assert_read_back(connection, t.ArrayType(case.data_type), case.lists(values))


@settings(quick, max_examples=60)
@given(data=st.data())
def test_every_nested_value_is_read_back(connection: psycopg.Connection, data: st.DataObject) -> None:
    """A column that becomes jsonb stands in the object as the same JSON."""
    case = structured(data.draw(st.lists(NESTED, min_size=1, max_size=3)))
    values = data.draw(st.lists(st.none() | case.values, max_size=4))
    assert_read_back(connection, case.data_type, pa.array(values, case.arrow_type))


@quick
@given(values=st.lists(st.none() | st.binary(max_size=9) | TEXTS.map(str.encode), min_size=1, max_size=9))
def test_no_byte_of_a_text_is_lost(connection: psycopg.Connection, values: list[bytes | None]) -> None:
    """A text that Postgres holds is itself, and any other is its bytes, in an object that jsonb takes."""
    stored = pa.array(values, pa.binary())
    array = pa.Array.from_buffers(pa.string(), len(values), stored.buffers(), stored.null_count)
    for text, value in zip(texts(t.StringType(), array), values, strict=True):
        ((said,),) = connection.execute("SELECT %s::jsonb -> 'c'", [text])
        if isinstance(said, dict):
            assert b64decode(said["base64"]) == value
            assert b"\0" in value or value.decode(errors="replace").encode() != value
        else:
            assert said == (None if value is None else value.decode())


@pytest.mark.parametrize("as_array", [True, False])
def test_a_value_with_a_nul_inside_is_its_json(connection: psycopg.Connection, as_array: bool) -> None:
    """The NUL is escaped in a text of its own, which jsonb takes and any reader of JSON understands."""
    if as_array:
        data_type, array = t.ArrayType(t.StringType()), pa.array([["a\0b", None, "\\u0000"], ["fits"]])
        expected: list[Any] = [["a\0b", None, "\\u0000"], ["fits"]]
    else:
        data_type = t.MapType(t.StringType(), t.StringType())
        array = pa.array([[("k\0", "\0v")], [("k", "fits")]], pa.map_(pa.string(), pa.string()))
        expected = [{"k\0": "\0v"}, {"k": "fits"}]
    bad, good = texts(data_type, array)
    ((said, other),) = connection.execute("SELECT %s::jsonb -> 'c', %s::jsonb -> 'c'", [bad, good])
    assert json.loads(said["json"]) == expected[0]
    assert other == expected[1]


def test_a_value_that_has_no_json_is_an_arrow_stream(connection: psycopg.Connection) -> None:
    """Bytes that are not UTF-8 inside a list, and numbers that its type does not hold, are kept as Arrow has them."""
    stored = pa.array([b"ok", b"\xff", b"neighbour"], pa.binary())
    elements = pa.Array.from_buffers(pa.string(), 3, stored.buffers())
    lists = pa.ListArray.from_arrays(pa.array([0, 2, 3], pa.int32()), elements)
    bad, good = texts(t.ArrayType(t.StringType()), lists)
    ((said, other),) = connection.execute("SELECT %s::jsonb -> 'c', %s::jsonb -> 'c'", [bad, good])
    assert other == ["neighbour"]
    stream = b64decode(said["arrow"])
    assert b"neighbour" not in stream
    value = pa.ipc.open_stream(stream).read_all()["value"].combine_chunks()
    assert value.cast(pa.list_(pa.binary())).to_pylist() == [[b"ok", b"\xff"]]
    (number,) = texts(t.IntegerType(), pa.array([2**40]))
    ((said,),) = connection.execute("SELECT %s::jsonb -> 'c'", [number])
    assert pa.ipc.open_stream(b64decode(said["arrow"])).read_all()["value"].to_pylist() == [2**40]


def test_a_variant_with_a_nul_inside_is_its_json() -> None:
    """A variant is JSON like any other, and what Python cannot read of one is kept as Arrow has it."""
    fits, bad = (t.VariantVal.parseJson(text) for text in ('{"a": [1, null]}', '{"k\\u0000": "\\u0000v"}'))
    unreadable = t.VariantVal(b"\xff\xff", fits.metadata)
    deep = t.VariantVal.parseJson("[" * 900 + "]" * 900)
    struct = pa.struct([("value", pa.binary()), ("metadata", pa.binary())])
    array = pa.array([{"value": v.value, "metadata": v.metadata} for v in (fits, bad, unreadable, deep)], struct)
    first, second, *others = (json.loads(text)["c"] for text in texts(t.VariantType(), array))
    assert first == {"a": [1, None]}
    assert json.loads(second["json"]) == {"k\0": "\0v"}
    for place, other in enumerate(others, 2):
        kept = pa.ipc.open_stream(b64decode(other["arrow"])).read_all()["value"].to_pylist()
        assert kept == array[place : place + 1].to_pylist()
