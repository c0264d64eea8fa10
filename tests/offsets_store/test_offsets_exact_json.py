"""Which JSON is held as it is, and which stays text, so that nothing is lost."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.offsets_store.offsets import decode_exactly, parse_offset, same_json


class TestExactness:
    @pytest.mark.parametrize(
        "text",
        [
            "0.10000000000000000001",
            "9007199254740993.0",
            "1e400",
            "1e22",
            '{"a":1,"a":2}',
            "NaN",
            "-Infinity",
            '"\\u0000"',
            '{"\\u0000":1}',
            '"\\ud800"',
            "not json",
            "",
            '{"a":',
            "[" * 100_000,
            "9" * 5000,
        ],
    )
    def test_what_cannot_be_held_stays_text(self, text):
        """A number that would round, a key that would vanish or a NUL that jsonb refuses is kept as text."""
        assert parse_offset(text) == text

    @pytest.mark.parametrize(
        ("text", "value"),
        [
            ("9007199254740993", 9007199254740993),
            ("170141183460469231731687303715884105727", 2**127 - 1),
            ("2.50", 2.5),
            ('"\\ud83d\\ude00"', "\U0001f600"),
            ('{"shardId-0":{"t":"x"},"metadata":[]}', {"shardId-0": {"t": "x"}, "metadata": []}),
            ("null", None),
            ("-", None),
        ],
    )
    def test_what_can_be_held_is_parsed(self, text, value):
        """Long integers keep their digits, and short fractions are numbers."""
        assert parse_offset(text) == value

    @settings(max_examples=50)
    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
    def test_a_decoded_value_is_read_again_as_the_same_value(self, value):
        """Whatever is decoded at all is written and read again as the same value, and as no other."""
        text = json.dumps([value])
        try:
            decoded = decode_exactly(text)
        except ValueError:
            return
        again = json.loads(json.dumps(decoded), parse_float=Decimal)
        assert again == json.loads(text, parse_float=Decimal)
        assert same_json(decoded, json.loads(text))
