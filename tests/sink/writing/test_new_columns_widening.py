"""A column is widened only in ways in which Postgres rewrites neither the table nor an index."""

from __future__ import annotations

from pyspark.sql import types as t

from pgonce.sink.encoding.encoded_types import EncodedColumn, encoded_columns
from pgonce.sink.writing.new_columns import (
    is_limited,
    wider_type,
)
from pgonce.sink.writing.table.catalogue import TargetColumn, look_up_table

TEXT, MOMENT, INSTANT = t.StringType(), t.TimestampNTZType(), t.TimestampType()
WIDER = [
    ("varchar(5)", TEXT, "text"),
    ("varchar(5)", t.VarcharType(9), "character varying(9)"),
    ("varchar(5)", t.CharType(9), "character varying(9)"),
    ("varchar(5)", t.MapType(TEXT, TEXT), "text"),
    ("varbit(5)", TEXT, "bit varying"),
    ("numeric(10,2)", t.DecimalType(12, 2), "numeric(12,2)"),
    ("numeric(10,2)", t.DecimalType(12, 0), "numeric(14,2)"),
    ("numeric(10,2)", t.LongType(), "numeric(21,2)"),
    ("numeric(3)", t.IntegerType(), "numeric(10,0)"),
    ("timestamp(3)", MOMENT, "timestamp without time zone"),
    ("timestamp(0)", MOMENT, "timestamp without time zone"),
    ("timestamptz(3)", INSTANT, "timestamp with time zone"),
    ("time(0)", t.TimeType(6), "time without time zone"),
    ("interval(3)", t.DayTimeIntervalType(), "interval"),
    ("interval day to second", t.DayTimeIntervalType(), "interval"),
    ("interval day", TEXT, "interval"),
]
NOT_WIDER = [
    ("varchar(9)", t.VarcharType(5)),
    ("varchar", TEXT),
    ("text", TEXT),
    ("char(5)", TEXT),
    ("varchar(5)[]", t.ArrayType(TEXT)),
    ("numeric(10,2)[]", t.ArrayType(t.DecimalType(12, 2))),
    ("numeric(12,2)", t.DecimalType(10, 2)),
    ("numeric(12,2)", t.DecimalType(12, 4)),
    ("numeric(12,2)", t.DoubleType()),
    ("numeric", t.DecimalType(38, 10)),
    ("integer", t.LongType()),
    ("real", t.DoubleType()),
    ("bit(5)", TEXT),
    ("date", MOMENT),
    ("timestamp(3)", INSTANT),
    ("timestamp", MOMENT),
]


def encoded(kind: t.DataType) -> EncodedColumn:
    """The column of the rows that is of this type."""
    (column,) = encoded_columns(t.StructType([t.StructField("k", kind)]))
    return column


def column_of(admin, kind: str) -> TargetColumn:
    """A column of a table that has rows and, where there can be one, an index."""
    admin.execute(f"CREATE TABLE events (id bigint, k {kind})".encode())
    admin.execute("INSERT INTO events SELECT i FROM generate_series(1, 100) AS i")
    admin.execute("CREATE INDEX by_k ON events (k)")
    _, table = look_up_table(admin, "events")
    return table.columns[1]


def test_what_is_widened_is_not_rewritten(admin):
    """The files of the table and of its index stay, nobody reads them, and the type is the one that was named."""
    files = "SELECT pg_relation_filenode('events'), pg_relation_filenode('by_k')"
    read = "SELECT pg_stat_get_xact_numscans('events'::regclass)"
    for before, sent, after in WIDER:
        column = column_of(admin, before)
        assert (before, wider_type(column, encoded(sent))) == (before, after)
        kept = admin.execute(files).fetchone()
        with admin.transaction():
            scans = admin.execute(read).fetchone()
            admin.execute(f"ALTER TABLE events ALTER COLUMN k TYPE {after}".encode())
            assert (before, admin.execute(read).fetchone()) == (before, scans)
        assert (before, admin.execute(files).fetchone()) == (before, kept)
        _, table = look_up_table(admin, "events")
        assert table.columns[1].full_type == after
        admin.execute("DROP TABLE events")


def test_what_would_be_rewritten_or_changed_is_not_widened(admin):
    """Nor is what is wide enough already."""
    for before, sent in NOT_WIDER:
        assert (before, sent, wider_type(column_of(admin, before), encoded(sent))) == (before, sent, None)
        admin.execute("DROP TABLE events")


def test_only_some_types_refuse_values_for_their_size(admin):
    """Others round them, or hold whatever comes."""
    kinds = {"varchar(5)": True, "numeric(5,2)": True, "varbit(5)": True, "text": False, "timestamp(3)": False}
    kinds |= {"varchar(5)[]": False, "numeric(5,2)[]": False, "varbit(5)[]": False, "varchar": False}
    for kind, limited in kinds.items():
        assert is_limited(column_of(admin, kind)) is limited
        admin.execute("DROP TABLE events")
