"""
Postgres reads back what Spark held: a real Postgres, for every type, at its edges and in between.

Covers: sink.encoding.arrow_forms, sink.encoding.json_texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema
from support.spark_values import (
    CASES,
    FIRST_DAY,
    FIRST_MICROSECOND,
    INT64,
    KEYS,
    LAST_DAY,
    LISTED,
    NESTED,
    TEXTS,
    listed,
    mapped,
    structured,
)
from support.typed_rows import struct_of

from pgonce.sink.encoding.copy_encoder import HEADER, TRAILER, CopyEncoder
from pgonce.sink.errors import EncodingError

quick = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def frame(data_type: t.DataType) -> t.StructType:
    """Return the schema of a frame with one column ``c``."""
    return struct_of({"c": data_type})


def copied(connection: psycopg.Connection, table_type: str, body: bytes, reading: str = "c") -> list[Any]:
    """Copy encoded rows of one column into an empty table, which stays, and read them back in order."""
    connection.rollback()
    create = "CREATE TEMP TABLE IF NOT EXISTS t (n bigint GENERATED ALWAYS AS IDENTITY, c {})"
    connection.execute(sql.SQL(create).format(sql.SQL(table_type)))
    connection.commit()
    with connection.cursor().copy("COPY t (c) FROM STDIN (FORMAT binary)") as copy:
        copy.write(HEADER + body + TRAILER)
    query = sql.SQL("SELECT {} FROM t ORDER BY n").format(sql.SQL(reading))
    return [row[0] for row in connection.cursor(binary=True).execute(query)]


def round_trip(connection: psycopg.Connection, data_type: t.DataType, array: pa.Array, reading: str = "c") -> list[Any]:
    """Encode an Arrow column, copy it into the table that createTable would write, and read it back."""
    encoder = CopyEncoder(frame(data_type))
    body = encoder.encode(pa.record_batch([array], names=["c"]))
    assert encoder.rows == len(array)
    return copied(connection, encoder.columns[0].ddl_type, body, reading)


@pytest.mark.parametrize("name", CASES)
@quick
@given(data=st.data())
def test_postgres_reads_back_every_value_of_an_atomic_type(
    connection: psycopg.Connection, name: str, data: st.DataObject
) -> None:
    """Each value comes back as it was, to the last bit, digit and microsecond, nulls among them."""
    case = CASES[name]
    values = data.draw(st.lists(st.none() | case.values, max_size=12))
    got = round_trip(connection, case.data_type, case.array(values), case.reading.format("c"))
    assert [None if v is None else case.same(v) for v in got] == [None if v is None else case.same(v) for v in values]


@pytest.mark.parametrize("name", LISTED)
@quick
@given(data=st.data())
def test_postgres_reads_back_every_array_of_an_atomic_type(
    connection: psycopg.Connection, name: str, data: st.DataObject
) -> None:
    """Null arrays, empty arrays and null elements stay apart, and elements come back as they were."""
    case = LISTED[name]
    values = data.draw(st.lists(st.none() | st.lists(st.none() | case.values, max_size=5), max_size=6))
    elements = f"ARRAY(SELECT {case.reading.format('e')} FROM unnest(c) WITH ORDINALITY AS u(e, i) ORDER BY i)"
    got = round_trip(
        connection, t.ArrayType(case.data_type), case.lists(values), f"CASE WHEN c IS NOT NULL THEN {elements} END"
    )
    assert [None if row is None else [None if v is None else case.same(v) for v in row] for row in got] == [
        None if row is None else [None if v is None else case.same(v) for v in row] for row in values
    ]


def json_rows(connection: psycopg.Connection, data_type: t.DataType, array: pa.Array) -> list[Any]:
    """Return what jsonb says, every number exact; Python's own numbers would round."""
    texts = round_trip(connection, data_type, array, "c::text")
    return [None if text is None else json.loads(text, parse_float=Decimal, parse_int=Decimal) for text in texts]


@settings(quick, max_examples=200)
@given(data=st.data())
def test_postgres_reads_back_nested_values_as_json(connection: psycopg.Connection, data: st.DataObject) -> None:
    """Structs, maps and arrays of anything come back as JSON of the same shape with exact numbers."""
    case = structured(data.draw(st.lists(NESTED, min_size=1, max_size=3)))
    case = data.draw(st.sampled_from([case, listed(case), mapped(KEYS[0], case)]))
    values = data.draw(st.lists(st.none() | case.values, max_size=4))
    array = pa.array(values, case.arrow_type)
    cut = data.draw(st.integers(0, len(values)))
    expected = [None if v is None else case.shown(v) for v in values]
    assert json_rows(connection, case.data_type, array.slice(cut)) == expected[cut:]


def test_json_says_times_that_python_does_not_have(connection: psycopg.Connection) -> None:
    """Years outside four digits carry a sign, the year before 1 is 0, and durations are ISO 8601."""
    times = {"d": t.DateType(), "ts": t.TimestampType(), "ntz": t.TimestampNTZType(), "i": t.DayTimeIntervalType()}
    when = struct_of(times)
    arrow = to_arrow_schema(when, timezone="UTC")
    rows = [
        (2_932_897, INT64[1], INT64[0], -93_784_500_000),
        (-719_528, -62_167_219_200_000_000, -62_135_596_800_000_001, 93_784_000_000),
        (-2_147_483_648, None, 0, 0),
        (2_147_483_647, 1, None, INT64[0]),
    ]
    columns = zip(zip(*rows, strict=True), (pa.int32(), pa.int64(), pa.int64(), pa.int64()), arrow, strict=True)
    children = [pa.array(values, width).cast(field.type) for values, width, field in columns]
    array = pa.StructArray.from_arrays(children, fields=list(arrow))
    assert json_rows(connection, when, array) == [
        {
            "d": "+10000-01-01",
            "ts": "+294247-01-10T04:00:54.775807+00:00",
            "ntz": "-290308-12-21T19:59:05.224192",
            "i": "PT-26H-3M-4.500000S",
        },
        {"d": "0000-01-01", "ts": "0000-01-01T00:00:00+00:00", "ntz": "0000-12-31T23:59:59.999999", "i": "PT26H3M4S"},
        {"d": "-5877641-06-23", "ts": None, "ntz": "1970-01-01T00:00:00", "i": "PT0H0M0S"},
        {
            "d": "+5881580-07-11",
            "ts": "1970-01-01T00:00:00.000001+00:00",
            "ntz": None,
            "i": "PT-2562047788H-0M-54.775808S",
        },
    ]
    (read,) = connection.execute("SELECT 'PT-26H-3M-4.500000S'::interval")
    assert read == (timedelta(microseconds=-93_784_500_000),)


@quick
@given(
    values=st.lists(st.none() | TEXTS | st.just("a\0b"), max_size=40), before=st.integers(0, 3), as_json=st.booleans()
)
def test_a_nul_in_text_stops_the_batch_with_its_column_and_row(
    values: list[str | None], before: int, as_json: bool
) -> None:
    """The row is the first with a NUL, counted over all batches of the task; without one nothing is raised."""
    data_type = t.MapType(t.StringType(), t.StringType()) if as_json else t.StringType()
    array = pa.array(values, pa.string())
    if as_json:
        array = pa.array([None if v is None else [(v, v)] for v in values], pa.map_(pa.string(), pa.string()))
    encoder = CopyEncoder(frame(data_type))
    encoder.encode(pa.record_batch([pa.nulls(before, array.type)], names=["c"]))
    bad = [row for row, value in enumerate(values, start=before + 1) if value and "\0" in value]
    if not bad:
        assert encoder.encode(pa.record_batch([array], names=["c"])) or not values
        return
    with pytest.raises(EncodingError, match=r"\[NUL_IN_TEXT\]") as caught:
        encoder.encode(pa.record_batch([array], names=["c"]))
    assert f"In row {bad[0]} of its task, column 'c' (Spark's {data_type.simpleString()}) has " in caught.value.what
    assert encoder.rows == before


def binary_as_text(values: list[bytes]) -> pa.Array:
    """Return bytes under the name of text, unseen, as Spark's cast does."""
    stored = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(values), stored.buffers())


DAYS, INSTANTS, CLOCKS = pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")


def second(arrow_type: pa.DataType, number: int) -> pa.Array:
    """Return two times, the second of which is this integer under their name."""
    return pa.array([0, number], pa.int32() if arrow_type == DAYS else pa.int64()).cast(arrow_type)


@pytest.mark.parametrize(
    ("data_type", "array", "code"),
    [
        (t.StringType(), binary_as_text([b"a", b"b\xff"]), "TEXT_NOT_UTF8"),
        (t.DateType(), second(DAYS, FIRST_DAY - 1), "TIME_OUT_OF_RANGE"),
        (t.DateType(), second(DAYS, LAST_DAY + 1), "TIME_OUT_OF_RANGE"),
        # The two that would read back as -infinity, the first numbers of the binary format.
        (t.DateType(), second(DAYS, -(2**31) + 10_957), "TIME_OUT_OF_RANGE"),
        (t.TimestampType(), second(INSTANTS, INT64[0] + 946_684_800_000_000), "TIME_OUT_OF_RANGE"),
        (t.TimestampType(), second(INSTANTS, INT64[0]), "TIME_OUT_OF_RANGE"),
        (t.TimestampNTZType(), second(CLOCKS, FIRST_MICROSECOND - 1), "TIME_OUT_OF_RANGE"),
        # Debezium's infinity, in microseconds.
        (t.TimestampNTZType(), second(CLOCKS, 9_223_372_036_825_200_000), "TIME_OUT_OF_RANGE"),
        (t.TimeType(6), second(pa.time64("ns"), 1), "VALUE_UNENCODABLE"),
        (t.IntegerType(), pa.array([0, 2**40]), "VALUE_UNENCODABLE"),
        (t.ArrayType(t.StringType()), pa.array([["a"], ["b", "\0"]]), "NUL_IN_TEXT"),
        (
            t.ArrayType(t.TimestampNTZType()),
            pa.array([[0], [FIRST_MICROSECOND - 1]]).cast(pa.list_(CLOCKS)),
            "TIME_OUT_OF_RANGE",
        ),
        (t.ArrayType(t.LongType()), pa.array([["1"], ["x"]]), "VALUE_UNENCODABLE"),
    ],
)
def test_a_value_that_postgres_cannot_hold_stops_the_batch(data_type: t.DataType, array: pa.Array, code: str) -> None:
    """Nothing wraps or turns into another value: the error has the column and the second row, and no value."""
    with pytest.raises(EncodingError, match="row 2 ") as caught:
        CopyEncoder(frame(data_type)).encode(pa.record_batch([array], names=["c"]))
    assert (caught.value.code, caught.value.data) == (code, "Nothing of this batch was written.")


@quick
@given(sizes=st.lists(st.sampled_from([0, 1, 2, 100, 16_384, 16_385, 40_000]), max_size=4))
def test_no_row_is_lost_between_batches_slices_and_buffers(connection: psycopg.Connection, sizes: list[int]) -> None:
    """Bodies of any sizes, of several encoders, follow one another in one COPY with every row once."""
    connection.rollback()
    struct_type = struct_of({"attempt": t.LongType(), "text": t.StringType()})
    connection.execute("CREATE TEMP TABLE t (attempt bigint, sink bigint, id bigint, text text)")
    first, second = (CopyEncoder(struct_type, extra={"attempt": 7, "sink": -1}) for _ in range(2))
    start = 0
    with connection.cursor().copy("COPY t FROM STDIN (FORMAT binary)") as copy:
        copy.write(HEADER)
        for place, size in enumerate(sizes):
            ids = pa.array(range(start, start + size), pa.int64())
            batch = pa.record_batch([ids, ids.cast(pa.string())], names=["attempt", "text"])
            copy.write((first if place % 2 else second).encode(batch))
            start += size
        copy.write(TRAILER)
    query = """
        SELECT count(*), count(DISTINCT id), coalesce(max(id), -1),
               count(*) FILTER (WHERE attempt = 7 AND sink = -1 AND text = id::text)
        FROM t
    """
    assert connection.execute(query).fetchone() == (start, start, start - 1, start)
    assert first.rows + second.rows == start


# What Spark holds, as an expression of Spark, and what Postgres must say of it, as text.
HELD = [
    ("cast(-128 AS byte)", "-128"),
    ("cast(32767 AS short)", "32767"),
    ("2147483647", "2147483647"),
    ("9223372036854775807L", "9223372036854775807"),
    ("float('1.4E-45')", "1e-45"),
    ("double('-Infinity')", "-Infinity"),
    ("double('NaN')", "NaN"),
    ("true", "true"),
    ("cast('-99999999999999999999999999999999999999' AS decimal(38,0))", "-" + "9" * 38),
    ("cast('0.00000000000000000000000000000000000001' AS decimal(38,38))", "0." + "0" * 37 + "1"),
    ("'é😀'", "é😀"),
    ("collate('Mixed', 'UTF8_LCASE')", "Mixed"),
    ("X'00FF'", "\\x00ff"),
    ("date'-4713-11-24'", "4714-11-24 BC"),
    ("date'1582-10-04'", "1582-10-04"),
    ("date_from_unix_date(2145042905)", "5874897-12-31"),
    ("timestamp'0001-01-01 00:00:00Z'", "0001-01-01 00:00:00+00"),
    ("timestamp_micros(9223372036825199999L)", "294247-01-10 04:00:25.199999+00"),
    ("timestamp'2024-03-10 02:30:00 America/New_York'", "2024-03-10 07:30:00+00"),
    ("timestamp_ntz'9999-12-31 23:59:59.999999'", "9999-12-31 23:59:59.999999"),
    ("interval '-1 02:03:04.5' day to second", "-26:03:04.5"),
    ("time'23:59:59.999999'", "23:59:59.999999"),
    ("array(1, null)", "{1,NULL}"),
    ("array('a', '')", '{a,""}'),
    ("array(timestamp'2024-01-01 00:00:00Z', null)", '{"2024-01-01 00:00:00+00",NULL}'),
    ("array(cast(1.5 AS decimal(3,1)))", "{1.5}"),
    ("array(array(1L, null), null)", "[[1, null], null]"),
    ("named_struct('b', X'00FF', 'a', cast(1.10 AS decimal(5,2)))", '{"a": 1.10, "b": "AP8="}'),
    ("map(1, 'x', 2, null)", '{"1": "x", "2": null}'),
    ("map(named_struct('k', 1), timestamp'2024-01-01 00:00:00Z')", '{"{\\"k\\":1}": "2024-01-01T00:00:00+00:00"}'),
    ("named_struct('n', null, 'f', array(float('0.1'), float('NaN')))", '{"f": [0.1, "NaN"], "n": null}'),
    (
        """parse_json('{"a": [1.10, null, true, "\\\\u00e9", 1e400, -7], "d": {}}')""",
        '{"a": [1.10, null, true, "é", "Infinity", -7], "d": {}}',
    ),
    ("parse_json('null')", "null"),
    ("parse_json('12345678901234567890.123')", "12345678901234567890.123"),
    ("parse_json('12345678901234567890123456789012345678')", "12345678901234567890123456789012345678"),
    ("parse_json('[-0.12345678901234567890123456789012345678]')", "[-0.12345678901234567890123456789012345678]"),
    ("cast(timestamp'2024-01-01 00:00:00Z' AS variant)", '"2024-01-01T00:00:00+00:00"'),
    ("cast(timestamp_ntz'2024-01-01 00:00:00' AS variant)", '"2024-01-01T00:00:00"'),
    ("cast(date'2024-01-01' AS variant)", '"2024-01-01"'),
    ("cast(X'00FF' AS variant)", '"AP8="'),
]


def sent_to_tasks(values: DataFrame) -> list[pa.RecordBatch]:
    """Return the record batches that Spark sends to its Python workers for a frame."""

    def serialized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, batch.schema) as writer:
                writer.write_batch(batch)
            yield pa.record_batch([pa.array([sink.getvalue().to_pybytes()], pa.binary())], names=["ipc"])

    rows = values.mapInArrow(serialized, "ipc binary").collect()
    return [batch for row in rows for batch in pa.ipc.open_stream(bytes(row.ipc))]


@pytest.mark.spark
@pytest.mark.parametrize("large", ["false", "true"])
def test_what_spark_sends_reads_back_as_what_spark_holds(
    spark: SparkSession, connection: psycopg.Connection, large: str
) -> None:
    """The Arrow that this Spark makes of each type, and of its null, encodes to the value that Spark holds."""
    whole = ", ".join(f"{expression} AS c{i}" for i, (expression, _) in enumerate(HELD))
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.useLargeVarTypes", large)
    session.conf.set("spark.sql.session.timeZone", "America/New_York")
    # Spark 4.3 has the type TIME only where this is said.
    session.conf.set("spark.sql.timeType.enabled", "true")
    values = session.sql(f"SELECT {whole}")
    nulls = session.range(1).join(values.where("1 = 0"), how="left").drop("id")
    # Not toArrow for the nulls: it fails on a null struct whose fields cannot be null (PySpark 4.3).
    batches = [*values.toArrow().to_batches(), *sent_to_tasks(values), *sent_to_tasks(nulls)]
    encoder = CopyEncoder(values.schema)
    connection.execute("SET LOCAL timezone = 'UTC'")
    columns = ", ".join(f"c{i} {column.ddl_type}" for i, column in enumerate(encoder.columns))
    connection.execute(sql.SQL("CREATE TEMP TABLE t ({})").format(sql.SQL(columns)))
    with connection.cursor().copy("COPY t FROM STDIN (FORMAT binary)") as copy:
        copy.write(HEADER + b"".join(encoder.encode(batch) for batch in batches) + TRAILER)
    texts = sql.SQL(", ".join(f"c{i}::text" for i in range(len(HELD))))
    collected, sent, of_nulls = connection.execute(sql.SQL("SELECT {} FROM t").format(texts)).fetchall()
    expressions = [expression for expression, _ in HELD]
    assert list(zip(expressions, collected, strict=True)) == HELD
    assert list(zip(expressions, sent, strict=True)) == HELD
    assert set(of_nulls) == {None}
