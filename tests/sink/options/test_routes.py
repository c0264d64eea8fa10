"""
Lists of tables that are understood, and those that are refused before a row moves.

Covers: sink.options.position_columns.
"""

from __future__ import annotations

import json

import pytest
from pyspark.sql import types as t
from support.sent_rows import arrow_rows
from support.typed_rows import struct_of
from support.with_rooms import reader_of

from pgonce import PostgresBatchWriter
from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.errors import EncodingError
from pgonce.sink.options.destination import destination
from pgonce.sink.options.position_columns import PositionColumns, written_type
from pgonce.sink.options.routes import where_to
from pgonce.sink.options.sink_options import parse_options

LEAST = {"url": "host=db", "checkpointLocation": "/ckpt", "route": "kind"}
ORDERS = {"table": "sales.orders", "mode": "upsert", "keys": ["id", "day"]}


def parse(tables, *, overwrite=False, **options):
    """Where rows go, as the sink's options say."""
    text = tables if isinstance(tables, str) else json.dumps(tables)
    return parse_options({**LEAST, "tables": text, **options}, overwrite=overwrite).destination


def in_python(tables, **given):
    """Where rows go, as the arguments of a Python writer say."""
    return where_to(route="kind", tables=tables, **given)


def test_a_list_means_the_same_in_json_and_in_python():
    """Keys may be a list or a text; names may be written as options or as arguments."""
    with_options = {"orders": ORDERS | {"orderBy": "at", "onlyNewer": True}, "clicks": {"columns": "id, name"}}
    with_arguments = {
        "orders": ORDERS | {"keys": "id,day", "order_by": "at", "only_newer": True},
        "clicks": {"columns": ["id", "name"], "table": None},
    }
    assert parse(with_options) == in_python(with_arguments)
    orders, clicks = parse(with_options)
    assert (orders.destination.table, orders.destination.keys) == ("sales.orders", ("id", "day"))
    assert (clicks.destination.table, clicks.destination.mode, clicks.columns) == ("clicks", "append", ("id", "name"))


def test_what_stands_beside_route_counts_for_all_tables():
    """A table may say otherwise; with another mode it does not take what has no meaning in that."""
    orders, clicks, gone = parse(
        {"orders": {}, "clicks": {"mode": "append"}, "gone": {"mode": "apply", "deleteWhen": "is_gone", "keys": "k"}},
        mode="upsert",
        keys="id",
        orderBy="at",
        deadLetters="true",
        schemaEvolution="ignoreExtra",
    )
    assert (orders.destination.mode, orders.destination.keys, orders.destination.order_by) == ("upsert", ("id",), "at")
    assert (clicks.destination.mode, clicks.destination.keys, clicks.destination.order_by) == ("append", (), None)
    assert (gone.destination.keys, gone.destination.order_by) == (("k",), "at")
    for route in (orders, clicks, gone):
        assert route.destination.schema_evolution == "ignoreExtra"
        assert route.destination.dead_letters is not None
        assert all(map(route.destination.is_only_if_there, ("kind", "is_gone")))


@pytest.mark.parametrize(
    ("beside", "own"),
    [
        ({"deadLetters": "true"}, {"deadLetters": False}),
        ({"createTable": "true"}, {"createTable": "false"}),
        ({"mode": "upsert", "orderBy": "at", "onlyNewer": "true"}, {"only_newer": False}),
        ({"mode": "upsert", "orderBy": "at"}, {"orderBy": ""}),
        ({"mode": "upsert", "keys": "id"}, {"keys": []}),
        ({"mode": "upsert", "updateColumns": "name"}, {"updateColumns": ""}),
    ],
)
def test_a_table_may_take_back_what_is_set_for_the_stream(beside, own):
    """An option that an entry sets to its default is not taken from the stream."""
    (alike,) = parse({"clicks": {"mode": beside.get("mode", "append")}}, **beside)
    (route,) = parse({"clicks": own}, **beside)
    (plain,) = parse({"clicks": {}}, **{name: beside[name] for name in beside if name != list(beside)[-1]})
    assert route != alike
    assert route == plain


@pytest.mark.parametrize(
    ("tables", "code", "word"),
    [
        ("{", "BAD_OPTION", "not JSON"),
        ("[1]", "BAD_OPTION", "not a JSON object"),
        ("", "BAD_OPTION", "lists no table"),
        ("{}", "BAD_OPTION", "lists no table"),
        ('{"a": {}, "a": {}}', "BAD_OPTION", "twice"),
        ('{"a": {"mode": "append", "mode": "upsert"}}', "BAD_OPTION", "twice"),
        ('{"a": "orders"}', "BAD_OPTION", "not an object"),
        ('{"a": {"keys": [1]}}', "BAD_OPTION", "keys"),
        ('{"a": {"mode": ["append"]}}', "BAD_OPTION", "list"),
        ('{"a": {"orderBy": "at", "order_by": "at", "mode": "upsert"}}', "CLASHING_OPTIONS", "two spellings"),
        ('{"a": {"tabel": "orders"}}', "UNKNOWN_OPTION", "tabel"),
        ('{"a": {"sinkName": "orders"}}', "UNKNOWN_OPTION", "sinkName"),
        ('{"a": {"mode": "upsrt"}}', "BAD_OPTION", "'a' in tables"),
        ('{"a": {"mode": "apply"}}', "OPTION_MISSING", "'a' in tables"),
        ('{"a": {"mode": "complete"}}', "CLASHING_OPTIONS", "output mode"),
        ('{"": {}}', "OPTION_MISSING", ""),
        ('{"a": {"mode": "apply", "changeFeed": "delta"}, "b": {}}', "CLASHING_OPTIONS", "changeFeed"),
    ],
)
def test_a_list_that_cannot_work_is_refused(tables, code, word):
    """The error says which entry it is about."""
    with pytest.raises(ConfigurationError, match=rf"\[{code}\]") as raised:
        parse(tables)
    assert word in raised.value.what


@pytest.mark.parametrize(
    "options",
    [{"table": "orders"}, {"unknownRoutes": "deadLetters"}, {"orderBy": "at", "changeFeed": "delta", "mode": "apply"}],
)
def test_options_that_do_not_go_with_route(options):
    """They are refused, and not passed over, with the name of the first."""
    with pytest.raises(ConfigurationError, match=r"\[CLASHING_OPTIONS\]") as raised:
        parse({"a": {}, "b": {"orderBy": ""}}, **options)
    assert raised.value.what.startswith(next(iter(options)))


def test_unknown_routes_are_one_of_three():
    """A value in another case is understood, and another word is not."""
    assert parse({"a": {}}, unknownRoutes="DROP").unknown == "drop"
    assert parse({"a": {}}).unknown == "refuse"
    assert parse({"a": {}}, unknownRoutes="deadletters", deadLetters="true").dead_letters == 100
    with pytest.raises(ConfigurationError, match="BAD_OPTION"):
        parse({"a": {}}, unknownRoutes="ignore")


def test_complete_mode_is_for_all_tables():
    """Spark's output mode decides it."""
    assert {route.destination.mode for route in parse({"a": {}, "b": {}}, overwrite=True)} == {"complete"}
    with pytest.raises(ConfigurationError, match="CLASHING_OPTIONS"):
        parse({"a": {}, "b": {"mode": "append"}}, overwrite=True)


def test_rows_are_told_apart_by_position_in_no_table_that_is_replaced():
    """The rows of mode=complete do not come from single records, whichever entry says so."""
    with pytest.raises(ConfigurationError, match="CLASHING_OPTIONS.*'a' in tables"):
        PostgresBatchWriter(
            route="kind", tables={"a": {"mode": "complete"}}, position_columns=["topic", "partition", "offset"]
        )


def test_the_column_must_have_values_with_one_text():
    """Times, floats and columns that the rows lack are refused."""
    where, known = in_python({"a": {"columns": ["id"]}}), {"id": t.LongType()}
    for column in (t.StringType(), t.ByteType(), t.LongType(), t.BooleanType()):
        reader_of(where, struct_of({"kind": column, **known}))
    unfit = [{"kind": column, **known} for column in (t.TimestampType(), t.DoubleType(), t.DecimalType(10, 0))]
    for columns in (*unfit, {"other": t.StringType(), **known}, {"kind": t.StringType()}):
        with pytest.raises(ConfigurationError, match="ROUTE_COLUMN"):
            reader_of(where, struct_of(columns))


def test_each_delete_column_speaks_for_its_own_rows():
    """A null in it stops the rows of its tables, and means nothing for those of others."""
    where = in_python(
        {"a": {"deleteWhen": "a_gone"}, "b": {"deleteWhen": "b_gone"}, "c": {"mode": "append"}}, mode="apply", keys="id"
    )
    struct = struct_of({"kind": t.StringType(), "a_gone": t.BooleanType(), "b_gone": t.BooleanType()})
    reader = reader_of(where, struct)
    said = arrow_rows(struct, [("a", True, None), ("b", None, False), ("c", None, None), (None, None, None)])
    assert reader.read(said) is said
    with pytest.raises(EncodingError, match="b_gone"):
        reader.read(arrow_rows(struct, [("a", True, None), ("b", True, None)]))


def test_a_position_column_may_choose_the_table():
    """The topic stays among the rows for that, even if position columns are not to be written."""
    where = where_to(route="topic", tables={"a": {}})
    place = {"topic": t.StringType(), "partition": t.IntegerType(), "offset": t.LongType()}
    kafka = struct_of({**place, "id": t.LongType()})
    positions = PositionColumns("topic", "partition", "offset", written=False)
    assert written_type(kafka, positions, where).names == ["topic", "id"]
    assert written_type(kafka, positions, destination("t")).names == ["id"]
