"""
What is read back from a column that may have fewer digits is what Spark held, or the row was refused.

Covers: sink.writing.table.fit, sink.writing.table.fit_column, sink.writing.write_table.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Context, Decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from pyspark.sql import types as t
from support.bad_rows import committed, letters
from support.committed_batch import rows_in
from support.sent_rows import publish
from support.spark_values import DAY, DURATION, MICROSECONDS, TEXTS, scaled
from support.typed_rows import struct_of

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.encoding.copy_encoder import HEADER, TRAILER, CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.writing.checked_table import ColumnPlan
from pgonce.sink.writing.rows import column_definitions
from pgonce.sink.writing.table.catalogue import look_up_table
from pgonce.sink.writing.table.fit import Fit
from pgonce.sink.writing.table.fit_column import fit_column
from pgonce.sink.writing.write_table import append_statement

quick = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
INT, LONG, TEXT, BOOL = t.IntegerType(), t.LongType(), t.StringType(), t.BooleanType()
INTERVAL = t.DayTimeIntervalType()
LONGS = st.integers(-(10**7), 10**7) | st.integers(-(2**63), 2**63 - 1)
REFUSED = object()


def stored(
    connection: psycopg.Connection,
    data_type: t.DataType,
    array: pa.Array,
    column: str,
    reading: str = "c::text",
    settings: str = "",
) -> list[Any]:
    """What is read back of each value, or REFUSED if Postgres refused its row for a value (SQLSTATE class 22)."""
    connection.rollback()
    connection.execute(settings.encode())
    struct = struct_of({"c": data_type})
    encoded = encoded_columns(struct)
    create = sql.SQL("CREATE TEMP TABLE given ({}); CREATE TEMP TABLE taken (c {})")
    connection.execute(create.format(column_definitions(encoded), sql.SQL(column)))
    with connection.cursor().copy("COPY given FROM STDIN (FORMAT binary)") as copy:
        copy.write(HEADER + CopyEncoder(struct).encode(pa.record_batch([array], names=["c"])) + TRAILER)
    _, table = look_up_table(connection, "pg_temp.taken")
    fitting = fit_column(encoded[0], table.columns[0])
    assert fitting.fit is not Fit.REFUSED, fitting.reason
    plan = [ColumnPlan("c", "c", fitting, table.columns[0].full_type)]
    found: list[Any] = []
    for (place,) in connection.execute("SELECT ctid::text FROM given ORDER BY ctid").fetchall():
        wanted = sql.SQL("ctid = {}::tid").format(sql.Literal(place))
        try:
            with connection.transaction():
                connection.execute("DELETE FROM taken")
                connection.execute(append_statement(sql.Identifier("pg_temp", "given"), wanted, table, plan))
        except psycopg.DataError:
            # SQLSTATE class 22.
            found.append(REFUSED)
        else:
            found.append(connection.execute(f"SELECT {reading} FROM taken".encode()).fetchone()[0])
    return found


@dataclass(frozen=True)
class Narrow:
    """A column that takes values of a type if it holds them: how they are drawn, read, and what the column keeps."""

    data_type: t.DataType
    values: st.SearchStrategy[Any]
    column: str
    holds: Callable[[Any], bool]
    reading: str
    arrow_type: pa.DataType

    def array(self, values: list[Any]) -> pa.Array:
        """The values as Spark would send them."""
        if isinstance(self.data_type, (t.TimestampType, t.TimestampNTZType, t.DayTimeIntervalType, t.TimeType)):
            return pa.array(values, pa.int64()).cast(self.arrow_type)
        return pa.array(values, self.arrow_type)


def numeric(precision: int, scale: int) -> Callable[[Any], bool]:
    """Whether a number is one of the type's."""
    # More digits than any of these has: by default, 28 are kept.
    digits = Context(prec=200)
    least, most = Decimal((0, (1,), -scale)), Decimal(10) ** (precision - scale)
    return lambda value: abs(value) < most and value == Decimal(value).quantize(least, context=digits)


def whole(bits: int) -> Callable[[Any], bool]:
    """Whether a number is an integer of so many bits."""
    return lambda value: value == int(value) and -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)


def of_digits(scale: int) -> st.SearchStrategy[Decimal]:
    """Decimals of few digits, with zeros at the end often."""
    return st.builds(
        lambda number, zeros: scaled(number * 10**zeros, scale), st.integers(-(10**6), 10**6), st.integers(0, scale + 2)
    )


MICROS = st.builds(lambda number, unit: number * unit, st.integers(-(10**9), 10**9), st.sampled_from([1, 1000, 10**6]))
CLOCKS = st.builds(
    lambda number, unit: number * unit % DAY * 1000, st.integers(0, DAY), st.sampled_from([1, 1000, 10**6])
)
NARROW = [
    *(
        Narrow(t.DecimalType(20, 6), of_digits(6), column, holds, "c::numeric", pa.decimal128(20, 6))
        for column, holds in [
            ("numeric(10,2)", numeric(10, 2)),
            ("numeric(5,0)", numeric(5, 0)),
            ("numeric(4,-2)", numeric(4, -2)),
            ("smallint", whole(16)),
            ("integer", whole(32)),
            ("bigint", whole(64)),
        ]
    ),
    *(
        Narrow(LONG, LONGS, column, holds, "c::bigint", pa.int64())
        for column, holds in [
            ("smallint", whole(16)),
            ("numeric(4,-2)", numeric(4, -2)),
            ("numeric(9,4)", numeric(9, 4)),
        ]
    ),
    *(
        Narrow(data_type, MICROS, f"{column}({digits})", lambda v, d=digits: v % 10 ** (6 - d) == 0, reading, arrow)
        for data_type, column, reading, arrow in [
            (t.TimestampType(), "timestamptz", MICROSECONDS, pa.timestamp("us", "UTC")),
            (t.TimestampNTZType(), "timestamp", MICROSECONDS, pa.timestamp("us")),
            (INTERVAL, "interval", DURATION, pa.duration("us")),
        ]
        for digits in (0, 3, 5)
    ),
    *(
        Narrow(INTERVAL, MICROS, f"interval {fields}", lambda v, u=unit: v % u == 0, DURATION, pa.duration("us"))
        for fields, unit in [("day", DAY * 10**6), ("hour to minute", 60_000_000), ("day to second(2)", 10_000)]
    ),
    *(
        Narrow(
            t.TimeType(6),
            CLOCKS,
            f"time({digits})",
            lambda v, d=digits: v % 10 ** (9 - d) == 0,
            "(extract(epoch FROM {}) * 1000000000)::bigint",
            pa.time64("ns"),
        )
        for digits in (0, 3)
    ),
]  # fmt: skip


@pytest.mark.parametrize("narrow", NARROW, ids=lambda narrow: f"{narrow.data_type.simpleString()} {narrow.column}")
@quick
@given(data=st.data())
def test_a_value_is_kept_or_refused(connection: psycopg.Connection, narrow: Narrow, data: st.DataObject) -> None:
    """The column holds just the values that it can hold, nulls too; the row of any other one is refused."""
    values = data.draw(st.lists(st.none() | narrow.values, max_size=8))
    found = stored(connection, narrow.data_type, narrow.array(values), narrow.column, narrow.reading.format("c"))
    assert found == [value if value is None or narrow.holds(value) else REFUSED for value in values]


@pytest.mark.parametrize("narrow", NARROW, ids=lambda narrow: f"{narrow.data_type.simpleString()} {narrow.column}[]")
@quick
@given(data=st.data())
def test_so_is_each_element_of_an_array(connection: psycopg.Connection, narrow: Narrow, data: st.DataObject) -> None:
    """One element that the type does not hold refuses the row; nulls and empty arrays stay."""
    rows = data.draw(st.lists(st.none() | st.lists(st.none() | narrow.values, max_size=3), max_size=5))
    ends = [0]
    for row in rows:
        ends.append(ends[-1] + len(row or ()))
    flat = narrow.array([value for row in rows for value in row or ()])
    lists = pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), flat, mask=pa.array([row is None for row in rows], pa.bool_())
    )
    reading = f"CASE WHEN c IS NOT NULL THEN ARRAY(SELECT {narrow.reading.format('e')} FROM unnest(c) AS e(e)) END"
    reading = reading.replace("c::", "e::").replace("CASE WHEN e", "CASE WHEN c")
    found = stored(connection, t.ArrayType(narrow.data_type), lists, f"{narrow.column}[]", reading)
    fits = [row is None or all(value is None or narrow.holds(value) for value in row) for row in rows]
    assert found == [row if fit else REFUSED for row, fit in zip(rows, fits, strict=True)]


def as_decimal(text: str) -> Decimal | None:
    """The number that a text is, as Postgres and Python agree to write one."""
    return (
        Decimal(text) if re.fullmatch(r"[-+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][-+]?[0-9]+)?", text.strip()) else None
    )


NUMBER_TEXTS = (
    st.builds(lambda number, scale: str(scaled(number, scale)), st.integers(-(10**80), 10**80), st.integers(0, 40))
    | st.decimals(-1000, 1000, places=3).map(str)
    | st.sampled_from(["1e5", "7E+3", " 12 ", "1.50", "-0", ".5", "12,50", "", "x", "0x10", "1_000", "1e-20000", "--1"])
)


@pytest.mark.parametrize(
    ("column", "holds"),
    [("numeric", lambda _: True), ("numeric(78,0)", numeric(78, 0)), ("numeric(10,2)", numeric(10, 2))],
)
@quick
@given(texts=st.lists(NUMBER_TEXTS, max_size=8))
def test_a_text_into_numeric_is_the_number_or_refused(
    connection: psycopg.Connection, column: str, holds: Callable[[Any], bool], texts: list[str]
) -> None:
    """No digit is rounded; what Python does not read as the same number is never another one."""
    found = stored(connection, TEXT, pa.array(texts, pa.string()), column, "c::text")
    for text, kept in zip(texts, found, strict=True):
        number = as_decimal(text)
        if number is None or text == "1e-20000":
            # Postgres from 16 on reads these two as Python's int does.
            assert kept is REFUSED or int(text, 0) == Decimal(kept)
        else:
            with_all_digits = kept is not REFUSED and Decimal(kept) == number
            assert with_all_digits is holds(number), (text, kept)


CLOCK_TEXTS = (
    st.times().map(time.isoformat)
    | st.from_regex(
        r"[0-2][0-9]:[0-6][0-9](:[0-6][0-9](\.[0-9]{1,7})?)?(Z|[+-][01][0-9](:[0-6][0-9])?)?", fullmatch=True
    )
    | st.sampled_from(["now", "allballs", "10:30 PM", "10:30:45 UTC", "2024-01-01 10:30", "10:30:60", "24:00:00", ""])
    | st.sampled_from(["1030", "10:30:45 America/New_York"])
)


@pytest.mark.parametrize(("column", "digits"), [("time", 6), ("time(3)", 3), ("timetz", 6), ("timetz(0)", 0)])
@quick
@given(texts=st.lists(CLOCK_TEXTS, max_size=8))
def test_a_text_into_a_time_of_day_is_that_time_or_refused(
    connection: psycopg.Connection, column: str, digits: int, texts: list[str]
) -> None:
    """A zone and a date are not dropped, a second is not shifted or rounded, and no setting says what it means."""
    zone = "SET LOCAL TIME ZONE 'Asia/Kathmandu'"
    found = stored(connection, TEXT, pa.array(texts, pa.string()), column, settings=zone)
    for text, kept in zip(texts, found, strict=True):
        form = re.fullmatch(r"([0-9:]{5,8})(?:\.([0-9]{1,6}))?(Z|[+-][0-9:]+)?", text)
        fits = form is not None and bool(form[3]) is column.startswith("timetz") and text[6:8] != "60"
        fits = fits and not (form[2] or "").ljust(6, "0")[digits:].strip("0")
        if kept is REFUSED:
            assert not fits or not _reads(text), text
        else:
            assert fits
            assert _seconds(kept) == _seconds(text), (text, kept)


def _reads(text: str) -> bool:
    try:
        _seconds(text)
    except ValueError:
        return False
    return True


def _seconds(text: str) -> tuple[Decimal, int | None]:
    """The time of day in seconds, and the offset in seconds."""
    clock, offset = re.fullmatch(r"([0-9:.]+)(.*)", text).groups()  # type: ignore[union-attr]
    hours, minutes, seconds = [*clock.split(":"), "0"][:3]
    if int(hours) > 23 + (Decimal(seconds) == int(minutes) == 0) or int(minutes) > 59 or Decimal(seconds) >= 60:
        raise ValueError(text)
    zone = None
    if offset:
        parts = [int(part) for part in offset.removeprefix("Z").lstrip("+-").split(":") if part] + [0, 0]
        if parts[0] > 15 or parts[1] > 59:
            raise ValueError(text)
        zone = (parts[0] * 3600 + parts[1] * 60) * (-1 if offset[0] == "-" else 1)
    return int(hours) * 3600 + int(minutes) * 60 + Decimal(seconds), zone


INSTANTS = st.datetimes().map(lambda value: value.replace(tzinfo=timezone.utc))
LEAVES = {
    "boolean": (BOOL, st.booleans(), pa.bool_(), "boolean[]"),
    "int": (INT, st.integers(-(2**31), 2**31 - 1), pa.int32(), "integer[][]"),
    "long": (LONG, st.integers(-(2**31), 2**31 - 1), pa.int64(), "integer[]"),
    "double": (t.DoubleType(), st.floats(allow_nan=False), pa.float64(), "double precision[][]"),
    "float": (t.FloatType(), st.floats(allow_nan=False, width=32), pa.float32(), "double precision[]"),
    "decimal": (t.DecimalType(10, 2), of_digits(2).filter(numeric(10, 2)), pa.decimal128(10, 2), "numeric(10,2)[]"),
    "string": (TEXT, TEXTS, pa.string(), "text[][]"),
    "date": (t.DateType(), st.dates(), pa.date32(), "date[]"),
    "timestamp": (t.TimestampType(), INSTANTS, pa.timestamp("us", "UTC"), "timestamptz[]"),
    "timestamp_ntz": (t.TimestampNTZType(), st.datetimes(), pa.timestamp("us"), "timestamp[]"),
    "time": (t.TimeType(6), st.times(), pa.time64("us"), "time[]"),
    "interval": (INTERVAL, st.timedeltas(timedelta(-9999), timedelta(9999)), pa.duration("us"), "interval[]"),
}


def is_rectangular(value: Any, depth: int) -> bool:
    """Whether an array of Postgres can be just this."""
    if depth == 1:
        return isinstance(value, list)
    if not isinstance(value, list) or not all(is_rectangular(part, depth - 1) for part in value):
        return False
    return len({_shape(part) for part in value}) == 1 and 0 not in _shape(value[0]) if value else True


def _shape(value: Any) -> tuple[int, ...]:
    return (len(value), *(_shape(value[0]) if value else ())) if isinstance(value, list) else ()


@pytest.mark.parametrize("name", LEAVES)
@quick
@given(data=st.data())
def test_arrays_of_arrays_are_kept_or_refused(connection: psycopg.Connection, name: str, data: st.DataObject) -> None:
    """What is rectangular has as many dimensions; ragged, empty inside, or null where an array should be is refused."""
    (data_type, values, arrow_type, column), depth = LEAVES[name], data.draw(st.sampled_from([2, 3]))
    ragged = st.none() | values
    for _ in range(depth):
        ragged = st.lists(ragged, max_size=2) | st.none()
    sides = data.draw(st.tuples(*[st.integers(1, 2)] * depth))
    even = st.none() | values
    for side in sides:
        even = st.lists(even, min_size=side, max_size=side)
    rows = data.draw(st.lists(ragged | even, max_size=5))
    for _ in range(depth):
        data_type, arrow_type = t.ArrayType(data_type), pa.list_(arrow_type)
    found = stored(connection, data_type, pa.array(rows, arrow_type), column, "c")
    for row, kept in zip(rows, found, strict=True):
        assert kept == (row if row is None or row == [] or is_rectangular(row, depth) else REFUSED)


@pytest.mark.parametrize("name", [name for name in LEAVES if name != "interval"])
@quick
@given(data=st.data())
def test_an_array_of_plain_values_is_json(connection: psycopg.Connection, name: str, data: st.DataObject) -> None:
    """It has the same elements, though a setting of the role would leave out digits or another one shifts its zone."""
    (data_type, values, arrow_type, _), column = LEAVES[name], data.draw(st.sampled_from(["jsonb", "json", "text"]))
    rows = data.draw(st.lists(st.none() | st.lists(st.none() | values, max_size=4), max_size=5))
    odd = "SET LOCAL extra_float_digits = 0; SET LOCAL TIME ZONE 'Asia/Kathmandu'; SET LOCAL DateStyle = 'SQL, DMY'"
    array = pa.array(rows, pa.list_(arrow_type))
    texts = stored(connection, t.ArrayType(data_type), array, column, settings=odd)
    for row, text in zip(rows, texts, strict=True):
        if text is REFUSED:
            assert name in ("double", "float")
        elif row is None:
            assert text is None
        else:
            assert [None if v is None else _from_json(name, v) for v in json.loads(text, parse_float=Decimal)] == row


def _from_json(name: str, value: Any) -> Any:
    if name in ("timestamp", "timestamp_ntz"):
        whole, fraction, zone = re.fullmatch(r"([-0-9]+T[0-9:]+)(\.[0-9]+)?([+-].*)?", value).groups()  # type: ignore[union-attr]
        found = datetime.fromisoformat(f"{whole}.{(fraction or '.')[1:].ljust(6, '0')}{zone or ''}")
        return found.astimezone(timezone.utc) if zone else found
    if name == "time":
        return time.fromisoformat(value if "." not in value else value.ljust(15, "0"))
    if name == "date":
        return date.fromisoformat(value)
    if name == "float" and not isinstance(value, str):
        return pa.scalar(float(value), pa.float32()).as_py()
    return float(value) if name in ("double", "float") else value


COLUMNS = {"id": LONG, "price": t.DecimalType(12, 4), "at": t.TimestampNTZType()}
TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, price numeric(10,2), at timestamp(3))"
GOOD = (1, Decimal("1.5000"), datetime.fromisoformat("2024-02-29T12:00:00.123000"))
ROUNDED = [(2, Decimal("1.5001"), None), (3, None, datetime.fromisoformat("2024-02-29T12:00:00.123400"))]


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("mode", ["append", "upsert", "apply"])
def test_a_row_that_would_be_rounded_is_put_aside(admin, url, mode, staged):
    """The letter names the column, and the other rows are written; a good row like it is not disturbed."""
    admin.execute(TABLE)
    rows, columns, how = [GOOD, *ROUNDED], COLUMNS, {}
    if mode == "apply":
        columns, how = {**COLUMNS, "gone": BOOL}, {"delete_when": "gone", "order_by": "id"}
        rows = [(*row, False) for row in rows]
    committed(url, rows, mode=mode, columns=columns, staged=staged, **how)
    assert rows_in(admin, "events") == [(1, Decimal("1.50"), GOOD[2])]
    assert letters(admin) == [(2, "price", "22P02"), (3, "at", "22007")]


def test_without_dead_letters_the_batch_is_refused_with_column_and_row(admin, url):
    """As for a value that overflows: the same code, and nothing is written."""
    admin.execute(TABLE)
    for row, column in zip(ROUNDED, ("price (numeric(10,2)", "at (timestamp(3)"), strict=True):
        with pytest.raises(TargetError, match=r"\[VALUE_NOT_STORABLE\]") as caught:
            committed(url, [GOOD, row], columns=COLUMNS, dead_letters=None)
        assert f"column {column}" in str(caught.value)
        assert f"id = {row[0]}" in str(caught.value)
        assert str(row[1] or row[2]) not in str(caught.value)
    assert rows_in(admin, "events") == []


def test_keys_that_would_be_rounded_do_not_become_one(admin, url):
    """Two keys that differ in the fourth digit are two rows of Spark's: the one that does not fit is refused."""
    admin.execute("CREATE TABLE events (id bigint, price numeric(10,2) PRIMARY KEY, at timestamp(3))")
    how = {"mode": "upsert", "keys": ("price",), "order_by": "id", "columns": COLUMNS}
    committed(url, [(1, Decimal("1.5000"), None), (2, Decimal("1.5001"), None)], **how)
    committed(url, [(3, Decimal("1.5"), None)], 1, **how)
    assert rows_in(admin, "events") == [(3, Decimal("1.50"), None)]
    assert letters(admin) == [(2, "price", "22P02")]


def test_operators_of_the_user_do_not_decide(admin, url):
    """An operator for the same types, first on the role's search_path, calls everything equal."""
    admin.execute(TABLE)
    admin.execute(
        "CREATE SCHEMA evil; CREATE FUNCTION evil.no(numeric, numeric) RETURNS bool LANGUAGE sql AS 'SELECT false'; "
        "CREATE OPERATOR evil.<> (LEFTARG = numeric, RIGHTARG = numeric, FUNCTION = evil.no); "
        "CREATE FUNCTION evil.concat(text, text) RETURNS text LANGUAGE sql AS 'SELECT ''0'''; "
        "CREATE DOMAIN evil.numeric AS pg_catalog.numeric(10,2); CREATE DOMAIN evil.timestamp AS timestamp(3); "
        "DO $$BEGIN EXECUTE format('ALTER DATABASE %I SET search_path = evil, public, pg_catalog', "
        "current_database()); END$$"
    )
    committed(url, [GOOD, *ROUNDED], columns=COLUMNS)
    assert rows_in(admin, "public.events") == [(1, Decimal("1.50"), GOOD[2])]
    assert [row[0] for row in letters(admin)] == [2, 3]


def test_json_cannot_be_a_key(url, admin):
    """An array that becomes JSON is not compared as Spark compares it, as a struct is not."""
    admin.execute("CREATE TABLE events (id bigint, c jsonb PRIMARY KEY)")
    struct = struct_of({"id": LONG, "c": t.ArrayType(TEXT)})
    with pytest.raises(TargetError, match=r"\[NESTED_KEY\]"):
        publish(url, "inline", struct, [(1, ["a"])], mode="upsert", keys=("c",))


def test_an_array_of_arrays_may_be_a_key(url, admin):
    """It is compared as Postgres compares the array that it becomes."""
    admin.execute("CREATE TABLE events (id bigint, c int[] PRIMARY KEY)")
    struct = struct_of({"id": LONG, "c": t.ArrayType(t.ArrayType(INT))})
    for number in (1, 2):
        publish(url, "inline", struct, [(number, [[1, 2], [3, 4]])], mode="upsert", keys=("c",))
    assert rows_in(admin, "events") == [(2, [[1, 2], [3, 4]])]
