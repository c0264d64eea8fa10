"""
What is written down with a dead letter is what its replay gets, and nothing else becomes part of a statement.

Covers: sink.writing.recorded_destination.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st
from pyspark.sql import types as t
from support.spark_types import NAMES, TYPES

from pgonce.offsets_store.errors import ConfigurationError, RecoveryError
from pgonce.sink.encoding.encoded_types import encoded_column, encoded_columns
from pgonce.sink.options.definitions import BY_KEY, Mode
from pgonce.sink.options.definitions import OPTIONS as OPTIONS_TABLE
from pgonce.sink.options.destination import Changes, destination
from pgonce.sink.options.option import Way
from pgonce.sink.options.routes import where_to
from pgonce.sink.writing.bad_rows.recalled_destination import RECORDED, recalled, recorded_oid
from pgonce.sink.writing.recorded_destination import recorded

COLUMNS = st.lists(st.tuples(NAMES, TYPES), min_size=1, max_size=4, unique_by=lambda column: column[0]).map(
    lambda columns: encoded_columns(t.StructType([t.StructField(*column) for column in columns]))
)
OPTIONS = st.fixed_dictionaries(
    {"table": NAMES.filter(str.strip), "mode": st.sampled_from(get_args(Mode))},
    optional={
        "keys": st.lists(NAMES, max_size=2, unique=True),
        "order_by": NAMES,
        "create_table": st.booleans(),
        "schema_evolution": st.sampled_from(["strict", "addColumns", "ignoreExtra"]),
        "delete_when": NAMES,
        "change_feed": st.sampled_from(["debezium", "delta", "spark"]),
        "deletes": st.sampled_from(["hard", "ignore", "soft:gone_at"]),
        "only_newer": st.booleans(),
        "tombstone_days": st.integers(1, 100),
        "on_conflict": st.sampled_from(["update", "ignore", "ignoreAny"]),
        "update_columns": st.lists(NAMES, max_size=2),
        "keep_where": st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=5),
    },
)
# What a replay does not need: it puts nothing aside, and creates no table.
NOT_RECORDED = {"table", "columns", "create_table", "dead_letters", "max_dead_letters"}
OF_A_MODE = {
    "append": {"keys", "create_table", "schema_evolution"},
    "complete": {"keys", "create_table", "schema_evolution"},
}


def test_every_option_about_rows_is_recorded():
    """Without one, a dead letter would be written otherwise than its batch."""
    about_rows = {argument for argument, option in OPTIONS_TABLE.items() if Way.TABLE in option.ways}
    assert about_rows - NOT_RECORDED == RECORDED


@given(OPTIONS, COLUMNS, st.frozensets(NAMES, max_size=2), st.booleans())
def test_what_is_recorded_is_recalled(options, columns, aside, all_delete):
    """Whatever the options and types, also once the ledger has kept it as JSON, but for what would alter the table."""
    wanted = OF_A_MODE.get(options["mode"], set(options)) | {"table", "mode"}
    try:
        where = destination(**{name: value for name, value in options.items() if name in wanted})
    except ConfigurationError:
        reject()
    where = replace(where, aside=aside)
    if all_delete and where.mode == "apply":
        where = replace(where, changes=Changes(all_delete=True))
    kept = json.loads(json.dumps(recorded(where, columns)))
    alters_nothing = replace(
        where,
        create_table=False,
        keys=where.keys if where.mode in BY_KEY else (),
        schema_evolution="ignoreExtra" if where.schema_evolution == "ignoreExtra" else "strict",
    )
    assert recalled(kept) == (alters_nothing, tuple(columns))


@pytest.mark.parametrize(
    "more",
    [
        {"decode_key": "json", "columns": {"name": "a.b"}, "kafka_columns": {"at": "timestamp"}},
        {"change_feed": "debezium"},
    ],
)
def test_how_records_are_decoded_is_recalled_too(more):
    """A replay decodes the record of a letter as its batch would have."""
    where = where_to(table="public.t", mode="apply", decode="json", **more)
    kept = json.loads(json.dumps(recorded(where, [encoded_column("id", t.LongType())])))
    assert recalled(kept)[0].decoding == where.decoding
    # The column that says which rows delete is one of those that were decoded.
    assert recalled(kept)[0].changes.deleted == where.changes.deleted
    assert recalled(kept)[0].changes.feed == where.changes.feed


def test_that_rows_may_be_put_aside_is_left_out():
    """A replay puts no row aside: a row that is refused again is an error."""
    where = destination("public.events", dead_letters=True)
    assert where.dead_letters == 100
    assert recalled(recorded(where, [encoded_column("id", t.LongType())]))[0] == replace(where, dead_letters=None)


def test_a_letter_that_does_not_say_which_columns_are_aside_is_not_replayed():
    """Somebody has changed it: without that, a column that only chooses the table would be one of the row."""
    kept = recorded(destination("public.events"), [encoded_column("id", t.LongType())])
    with pytest.raises(RecoveryError, match="REPLAY_IMPOSSIBLE"):
        recalled({name: value for name, value in kept.items() if name != "aside"})


def with_options(**options):
    """What is recorded, with other options."""
    return {**KEPT, "options": {"mode": "append", **options}}


STRUCT = t.StructType([t.StructField("id", t.LongType()), t.StructField("parts", t.StructType().add("a", "string"))])
KEPT = recorded(destination("public.events"), encoded_columns(STRUCT))


@pytest.mark.parametrize(
    "value",
    [
        {},
        None,
        [],
        {**KEPT, "version": 1},
        {**KEPT, "options": []},
        {**KEPT, "options": None},
        with_options(mode="truncate"),
        with_options(keys=[1]),
        with_options(create_table=True, keys=["id"]),
        with_options(schema_evolution="addColumns"),
        with_options(dead_letters=True),
        with_options(dead_letters=100),
        with_options(mode="apply", delete_when="gone", change_feed="delta"),
        with_options(mode="upsert", all_delete=True),
        with_options(mode="upsert", only_newer="yes", order_by="seq"),
        with_options(mode="upsert", on_conflict="do nothing; DROP TABLE events; --"),
        {**KEPT, "aside": [1]},
        {**KEPT, "decoding": ["decode"]},
        {**KEPT, "decoding": {"decode": "avro"}},
        {**KEPT, "decoding": {"decode": "json", "url": "host=elsewhere"}},
        {**KEPT, "decoding": {"decode": "json", "columns": {"id": 1}}},
        {**KEPT, "aside": None},
        {**KEPT, "table": ""},
        {**KEPT, "table": 1},
        {**KEPT, "columns": []},
        {**KEPT, "columns": {"name": "id", "type": "long"}},
        {**KEPT, "columns": [{"name": "id"}]},
        {**KEPT, "columns": [{"name": "id", "type": "long", "data_type": {"type": "udt"}}]},
        {**KEPT, "columns": [{"name": "x" * 64, "type": "long"}]},
        {**KEPT, "columns": [{"name": "id", "type": "long"}] * 2},
        {**KEPT, "columns": [{"name": "id", "type": "int8); DROP TABLE events; --"}]},
        {**KEPT, "columns": [{"name": "id", "type": "void"}]},
        {**KEPT, "columns": [{"name": "id", "type": {"type": "udt", "pyClass": "this.No", "sqlType": "string"}}]},
        {name: value for name, value in KEPT.items() if name != "table"},
    ],
)
def test_anything_else_is_refused(value):
    """Nothing, another version, and a changed record: with a reason, and before any statement is made of it."""
    with pytest.raises(RecoveryError, match=r"\[REPLAY_IMPOSSIBLE\]") as error:
        recalled(value)
    assert "--discard" in str(error.value)


@pytest.mark.parametrize("oid", ["16384", 1.5, True, [1]])
def test_an_oid_that_is_none(oid):
    """What somebody has made of it is refused; without it, as older versions have left it, nothing is compared."""
    assert recorded_oid(recorded(destination("public.events"), [], 16384)) == 16384
    assert recorded_oid({name: value for name, value in KEPT.items() if name != "oid"}) is None
    with pytest.raises(RecoveryError, match=r"\[REPLAY_IMPOSSIBLE\]"):
        recorded_oid({**KEPT, "oid": oid})
