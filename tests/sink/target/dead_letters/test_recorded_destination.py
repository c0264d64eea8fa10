"""What is written down with a dead letter is what its replay gets, and nothing else becomes part of a statement."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t

from pgonce.offsets_store.errors import RecoveryError
from pgonce.sink.by_key import Changes, Existing
from pgonce.sink.encoding.encoded_types import encoded_column, encoded_columns
from pgonce.sink.settings import DeadLetters, Destination, destination
from pgonce.sink.target.dead_letters.recorded_destination import recalled, recorded, recorded_oid

NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=15)
SCALARS = st.sampled_from(
    [
        t.BooleanType(),
        t.ByteType(),
        t.ShortType(),
        t.IntegerType(),
        t.LongType(),
        t.FloatType(),
        t.DoubleType(),
        t.StringType(),
        t.StringType("UTF8_LCASE"),
        t.VarcharType(10),
        t.CharType(3),
        t.BinaryType(),
        t.DateType(),
        t.TimestampType(),
        t.TimestampNTZType(),
        t.DayTimeIntervalType(0, 3),
        t.VariantType(),
    ]
) | st.builds(
    lambda precision, scale: t.DecimalType(precision, min(scale, precision)), st.integers(1, 38), st.integers(0, 38)
)


def containers(inner):
    """Types that are made of others."""
    fields = st.lists(st.tuples(NAMES, inner, st.booleans()), min_size=1, max_size=3, unique_by=lambda field: field[0])
    return (
        st.builds(t.ArrayType, inner, st.booleans())
        | st.builds(t.MapType, st.just(t.StringType()), inner, st.booleans())
        | fields.map(lambda given: t.StructType([t.StructField(*field) for field in given]))
    )


COLUMNS = st.lists(
    st.builds(encoded_column, NAMES, st.recursive(SCALARS, containers, max_leaves=4)), min_size=1, max_size=4
)
CHANGES = st.builds(
    Changes,
    st.none() | NAMES,
    st.sampled_from([None, "debezium", "delta", "spark"]),
    st.booleans(),
    st.sampled_from(["hard", "soft", "ignore"]),
    st.none() | NAMES,
)
EXISTING = st.builds(
    Existing,
    st.sampled_from(["update", "ignore"]),
    st.booleans(),
    st.integers(1, 1000),
    st.lists(NAMES, max_size=2).map(tuple),
    st.none() | NAMES,
)
DESTINATIONS = st.builds(
    Destination,
    NAMES,
    st.sampled_from(["append", "upsert", "apply", "complete"]),
    st.lists(NAMES, max_size=2).map(tuple),
    st.none() | NAMES,
    st.booleans(),
    st.sampled_from(["strict", "addColumns", "ignoreExtra"]),
    st.none() | CHANGES,
    EXISTING,
    aside=st.frozensets(NAMES, max_size=2),
)


@given(DESTINATIONS, COLUMNS)
def test_what_is_recorded_is_recalled(where, columns):
    """Whatever the settings and types, also once the ledger has kept it as JSON."""
    kept = json.loads(json.dumps(recorded(where, columns)))
    assert recalled(kept) == (where, tuple(columns))


def test_where_dead_letters_go_is_left_out():
    """A replay puts no row aside: a row that is refused again is an error."""
    where = destination("public.events", dead_letters=True)
    assert where.dead_letters == DeadLetters()
    assert recalled(recorded(where, [encoded_column("id", t.LongType())]))[0] == replace(where, dead_letters=None)


def test_a_letter_that_does_not_say_which_columns_are_aside_has_none():
    """An earlier pgonce has not written it down."""
    kept = recorded(destination("public.events"), [encoded_column("id", t.LongType())])
    assert recalled({name: value for name, value in kept.items() if name != "aside"})[0].aside == frozenset()


STRUCT = t.StructType([t.StructField("id", t.LongType()), t.StructField("parts", t.StructType().add("a", "string"))])
KEPT = recorded(destination("public.events"), encoded_columns(STRUCT))


@pytest.mark.parametrize(
    "value",
    [
        {},
        None,
        [],
        {**KEPT, "version": 2},
        {**KEPT, "mode": "truncate"},
        {**KEPT, "keys": [1]},
        {**KEPT, "create_table": "yes"},
        {**KEPT, "schema_evolution": "anything"},
        {**KEPT, "existing": {**KEPT["existing"], "tombstone_days": 0}},
        {**KEPT, "aside": [1]},
        {**KEPT, "aside": None},
        {**KEPT, "columns": [{"name": "id"}]},
        {**KEPT, "columns": [{**KEPT["columns"][0], "postgres_type": "int8); DROP TABLE events; --"}]},
        {**KEPT, "columns": [{**KEPT["columns"][0], "postgres_type": "regclass"}]},
        {**KEPT, "columns": [{**KEPT["columns"][0], "ddl_type": "bigint DEFAULT evil()"}]},
        {**KEPT, "columns": [{**KEPT["columns"][1], "data_type": {"type": "nothing"}}]},
        {name: value for name, value in KEPT.items() if name != "table"},
    ],
)
def test_anything_else_is_refused(value):
    """Nothing, another version, and what somebody has changed: in words, and before any statement is made of it."""
    with pytest.raises(RecoveryError) as error:
        recalled(value)
    assert error.value.code == "REPLAY_IMPOSSIBLE"
    assert "--discard" in str(error.value)


@pytest.mark.parametrize("oid", ["16384", 1.5, True, [1]])
def test_an_oid_that_is_none(oid):
    """What somebody has made of it is refused; without it, as older versions have left it, nothing is compared."""
    assert recorded_oid(recorded(destination("public.events"), [], 16384)) == 16384
    assert recorded_oid({name: value for name, value in KEPT.items() if name != "oid"}) is None
    with pytest.raises(RecoveryError) as error:
        recorded_oid({**KEPT, "oid": oid})
    assert error.value.code == "REPLAY_IMPOSSIBLE"
