"""What must be altered about a table so that it takes the rows; nothing where it takes them already."""

from __future__ import annotations

from pyspark.sql import types as t

from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.checked_table import left_out, plan_columns, without_extra
from pgonce.sink.writing.new_columns import columns_to_add, look_as_altered
from pgonce.sink.writing.table.catalogue import TargetTable, look_up_table
from pgonce.sink.writing.table.new_table import alter_statement

KINDS = {
    "id": t.LongType(),
    "name": t.StringType(),
    "price": t.DecimalType(12, 2),
    "at": t.TimestampType(),
    "day": t.DateType(),
    "tags": t.ArrayType(t.StringType()),
    "more": t.MapType(t.StringType(), t.StringType()),
    "Odd Name": t.DoubleType(),
}
COLUMNS = encoded_columns(t.StructType([t.StructField(name, kind) for name, kind in KINDS.items()]))
ADD = destination("events", schema_evolution="addColumns")
IGNORE = destination("events", schema_evolution="ignoreExtra")


def table_of(admin, columns: str) -> TargetTable:
    """A table with these columns."""
    admin.execute(f"CREATE TABLE events ({columns})".encode())
    return look_up_table(admin, "events")[1]


def test_columns_are_added_as_create_table_makes_them(admin):
    """Same names, same types; and then the rows fit."""
    table = table_of(admin, "id bigint")
    columns, imagined = columns_to_add(table, COLUMNS, ADD), look_as_altered(admin, table, COLUMNS, ADD)
    admin.execute(alter_statement(table.identifier, columns))
    altered = look_up_table(admin, "events")[1]
    assert [(column.column_name, column.full_type) for column in altered.columns] == [
        ("id", "bigint"),
        ("name", "text"),
        ("price", "numeric(12,2)"),
        ("at", "timestamp with time zone"),
        ("day", "date"),
        ("tags", "text[]"),
        ("more", "jsonb"),
        ("Odd Name", "double precision"),
    ]
    assert columns_to_add(altered, COLUMNS, ADD) == ()
    fits = [[plan.fitting for plan in plan_columns(found, COLUMNS, ADD)] for found in (altered, imagined)]
    assert fits[0] == fits[1]


def test_columns_that_the_table_lacks_are_left_out(admin):
    """They are named, in one sentence."""
    table = table_of(admin, "id bigint, name text, price numeric, at timestamptz, day date, tags text[]")
    kept = without_extra(table, COLUMNS, IGNORE)
    assert [column.name for column in kept] == ["id", "name", "price", "at", "day", "tags"]
    assert left_out(COLUMNS, kept, table) == (
        "public.events lacks columns more, Odd Name of the rows, left out by schemaEvolution=ignoreExtra."
    )
    assert left_out(kept, kept, table) == ""


def test_neither_keys_nor_all_columns_are_left_out(admin):
    """Without its key a row is another one, and without columns there is none."""
    table = table_of(admin, "other bigint")
    to = destination("events", "upsert", ("Id",), schema_evolution="ignoreExtra")
    assert [column.name for column in without_extra(table, COLUMNS, to)] == ["id"]
    assert without_extra(table, COLUMNS, IGNORE) == COLUMNS
