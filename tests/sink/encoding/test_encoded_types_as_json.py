"""Types that a dead letter records are read back as they were, and nothing else is read, imported or run."""

from __future__ import annotations

import base64
import json
import os
import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from support.spark_types import TYPES

from pgonce.sink.encoding.encoded_types import MOST_NESTED, type_as_json, type_from_json


@given(TYPES)
def test_every_type_that_can_be_encoded_is_read_back(data_type):
    """Also when the ledger has kept it as JSON."""
    assert type_from_json(json.loads(json.dumps(type_as_json(data_type)))) == data_type


def test_metadata_and_collations_are_left_out():
    """They are Spark's alone, and metadata is free text."""
    fields = [t.StructField("a", t.StringType("UTF8_LCASE"), metadata={"any": "thing"})]
    assert type_from_json(type_as_json(t.StructType(fields))) == t.StructType([t.StructField("a", t.StringType())])


class Evil:
    """Unpickling it makes a file."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


def of_user(proof: Path) -> dict[str, Any]:
    """A user-defined type, whose class Spark's own reader imports, and unpickles if that fails."""
    pickled = base64.b64encode(pickle.dumps(Evil(proof))).decode()
    return {"type": "udt", "class": None, "pyClass": "this.No", "sqlType": "string", "serializedClass": pickled}


def struct(of: Any) -> dict[str, Any]:
    """A struct with one field of this type."""
    return {"type": "struct", "fields": [{"name": "a", "type": of, "nullable": True}]}


@pytest.mark.parametrize(
    "around",
    [
        lambda udt: udt,
        lambda udt: {"type": "array", "elementType": udt, "containsNull": True},
        lambda udt: {"type": "map", "keyType": udt, "valueType": "string", "valueContainsNull": True},
        lambda udt: {"type": "map", "keyType": "string", "valueType": udt, "valueContainsNull": True},
        struct,
        lambda udt: struct({"type": "array", "elementType": struct(udt), "containsNull": False}),
    ],
    ids=["itself", "array", "key", "value", "struct", "deep"],
)
def test_a_user_defined_type_is_refused_wherever_it_stands(around, tmp_path):
    """No module of its choice is imported, and nothing is unpickled."""
    proof = tmp_path / "made"
    with pytest.raises(ValueError, match="not a type that can be written"):
        type_from_json(around(of_user(proof)))
    assert not proof.exists()
    assert "this" not in sys.modules


def deep(levels: int) -> Any:
    """An array in an array in an array."""
    value: Any = "long"
    for _ in range(levels):
        value = {"type": "array", "elementType": value, "containsNull": True}
    return value


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        [],
        {},
        ["string"],
        "",
        "udt",
        "string collate evil",
        "string\n",
        "decimal",
        "decimal(10)",
        "decimal(0,0)",
        "decimal(39,2)",
        "decimal(\u0661,2)",
        "varchar(3,1)",
        "varchar(99999999999)",
        "interval year",
        "calendar_interval",
        {"type": ["struct"], "fields": []},
        {"type": "struct"},
        {"type": "struct", "fields": {}},
        {"type": "struct", "fields": ["string"]},
        {"type": "struct", "fields": [{"name": 1, "type": "string", "nullable": True}]},
        {"type": "struct", "fields": [{"name": "a", "type": "string", "nullable": "yes"}]},
        {"type": "struct", "fields": [{"name": "a", "type": "string", "nullable": True, "metadata": {}}]},
        {"type": "array", "elementType": "string", "containsNull": 1},
        {"type": "array", "elementType": "string", "containsNull": True, "class": "os.system"},
        deep(MOST_NESTED + 1),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_anything_else_is_refused(value):
    """With a reason, and before anything is made of it."""
    with pytest.raises(ValueError, match="type"):
        type_from_json(value)


def test_the_deepest_type_that_is_read():
    """Deeper ones could exhaust Python's stack."""
    assert type_as_json(type_from_json(deep(MOST_NESTED))) == deep(MOST_NESTED)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=12),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["type", "fields", "name", "nullable", "elementType", "containsNull"]), inner
            )
        ),
    )
)
def test_no_json_is_taken_for_more_than_it_says(value):
    """What is read is written down as the same again."""
    try:
        found = type_from_json(value)
    except ValueError:
        return
    assert type_as_json(found) == value
