"""How two sets of offsets stand to each other: no I/O, no Spark."""

from __future__ import annotations

import json
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.offsets_store.offsets import (
    by_partition,
    decode_exactly,
    goes_back,
    is_kafka,
    kafka_partitions,
    least_common,
    only,
    parse_offset,
    same,
    same_json,
    says_which_rows,
)
from pgonce.offsets_store.status.stored import CurrentOffset, as_current


class TestKafka:
    @pytest.mark.parametrize("offset", [{"t": {"0": 23}}, {"t": {"0": 0, "10": 2**63 - 1}, "u.v-w": {"3": 5}}])
    def test_topics_with_partitions_and_offsets_are_kafkas(self, offset):
        """Topics to partitions to offsets."""
        assert is_kafka(offset)

    @pytest.mark.parametrize(
        "offset",
        [
            None,
            3,
            "x",
            {},
            {"logOffset": 0},
            {"t": {}},
            {"t": {"0": True}},
            {"t": {"0": 1.0}},
            {"t": {"0": -1}},
            {"t": {"zero": 1}},
            {"t": {"٣": 1}},
            {"t": {"0": 1}, "metadata": {}},
            {"0": {"value": -2, "runTimeMs": 1795208179212}},
        ],
    )
    def test_what_is_no_position_of_a_topic_is_not_kafkas(self, offset):
        """Anything else, -1 and -2 (latest and earliest, no positions) and the continuous rate source too."""
        assert not is_kafka(offset)

    def test_one_opaque_source_makes_equal_offsets_prove_nothing(self):
        """One opaque source is enough for equal offsets to prove nothing, and so is no source."""
        assert says_which_rows({"0": {"t": {"0": 1}}, "orders": {"u": {"0": 1}}})
        assert not says_which_rows({"0": {"t": {"0": 1}}, "1": {"logOffset": 0}})
        assert not says_which_rows({"0": {"t": {"0": 1}}, "1": None})
        assert not says_which_rows({})
        assert not says_which_rows(None)

    def test_partitions_of_every_kafka_source_are_listed(self):
        """The partitions of every Kafka source, other sources aside."""
        offsets = {"0": {"t": {"0": 1, "1": 2}}, "1": {"logOffset": 0}, "x": {"u": {"0": 9}}, "2": None}
        assert kafka_partitions(offsets) == {("t", 0), ("t", 1), ("u", 0)}

    def test_goes_back_names_what_went(self):
        """A lower end and a vanished partition, topic or source are named, in order; a new one is not."""
        start = {"0": {"t": {"0": 20, "1": 5, "2": 7, "10": 1}}, "1": {"u": {"0": 3}}, "2": {"logOffset": 9}}
        end = {"0": {"t": {"0": 5, "1": 5, "10": 0, "11": 0}}, "2": {"logOffset": 1}}
        assert goes_back(start, end) == [
            "t-0 was at 20 and goes back to 5",
            "t-2 was at 7 and is gone",
            "t-10 was at 1 and goes back to 0",
            "u-0 was at 3 and is gone",
        ]

    def test_goes_back_needs_both_sides(self):
        """Nothing is said where one side is unknown."""
        known = {"0": {"t": {"0": 20}}}
        assert goes_back(None, known) == []
        assert goes_back(known, None) == []
        assert goes_back({"0": None}, known) == []

    @given(
        st.dictionaries(
            st.tuples(st.sampled_from("tu"), st.integers(0, 11)), st.tuples(st.integers(0, 9), st.integers(0, 9))
        )
    )
    def test_goes_back_finds_exactly_the_lower_ones(self, ranges):
        """As many partitions are named as have an end below their start."""
        start: dict = {}
        end: dict = {}
        for (topic, partition), (first, last) in ranges.items():
            start.setdefault(topic, {})[str(partition)] = first
            end.setdefault(topic, {})[str(partition)] = last
        found = goes_back({"0": start}, {"0": end})
        assert len(found) == sum(last < first for first, last in ranges.values())

    def test_current_offsets_have_a_row_for_each_partition_or_source(self):
        """A row a partition for Kafka and one a source otherwise, ordered by number where they have one."""
        offsets = {"x": 5, "10": {"t": {"10": 1, "2": 2}}, "9": {"logOffset": 0}, "1": None}
        assert as_current(offsets) == [
            CurrentOffset("1", None, None, None),
            CurrentOffset("9", None, None, {"logOffset": 0}),
            CurrentOffset("10", "t", 2, 2),
            CurrentOffset("10", "t", 10, 1),
            CurrentOffset("x", None, None, 5),
        ]


class TestSame:
    def test_key_order_and_white_space_are_nothing(self):
        """Kafka's key order changes from batch to batch, and white space from one report to the next."""
        one = {"0": parse_offset('{"t":{"0":1,"1":2}}')}
        assert same(one, {"0": parse_offset('{ "t" : {"1": 2, "0": 1} }')})

    @pytest.mark.parametrize("unknown", [None, {}, {"0": None}, {"0": {"t": {"0": 1}}, "1": None}])
    def test_an_unknown_offset_equals_nothing_not_even_itself(self, unknown):
        """What is not known is not even the same as itself."""
        assert not same(unknown, unknown)
        assert not same(unknown, {"0": {"t": {"0": 1}}})
        assert not same({"0": {"t": {"0": 1}}}, unknown)

    @pytest.mark.parametrize(
        ("a", "b"),
        [
            ({"0": 1}, {"1": 1}),
            ({"0": 1}, {"0": 1, "1": 1}),
            ({"0": 1}, {"0": True}),
            ({"0": {"x": [0]}}, {"0": {"x": [False]}}),
            ({"0": {"x": [0]}}, {"0": {"x": [0, 0]}}),
            ({"0": 2**53}, {"0": 2**53 + 1}),
            ({"0": float(2**53)}, {"0": 2**53 + 1}),
            ({"0": "1"}, {"0": 1}),
            ({"0": {"x": None}}, {"0": {}}),
        ],
    )
    def test_another_source_type_or_digit_is_a_difference(self, a, b):
        """Another source, another type of JSON value or a last digit is a difference."""
        assert not same(a, b)
        assert not same(b, a)

    def test_null_inside_an_offset_is_a_value(self):
        """Only a whole offset can be unknown; a null that a source wrote inside of it is what it wrote."""
        assert same({"0": {"x": None}}, {"0": {"x": None}})


FIRST = {"0": {"a": {"0": 5, "1": 7}, "b": {"0": 1}}}
SECOND = {"0": {"a": {"0": 3, "2": 9}, "b": {"0": 4}}}


class TestSetsOfPositions:
    def test_positions_are_told_by_topic_and_partition_only(self):
        """The source has no place in it, and what is not Kafka's is left out."""
        assert by_partition(FIRST) == {("a", 0): 5, ("a", 1): 7, ("b", 0): 1}
        assert by_partition(None) == by_partition({"0": 7}) == {}

    def test_the_least_of_two_sets_has_only_partitions_of_both(self):
        """The lesser of both where both have the partition; nothing where one lacks it."""
        assert least_common(FIRST, SECOND) == {"0": {"a": {"0": 3}, "b": {"0": 1}}}
        assert least_common(FIRST, {}) == {}

    def test_a_set_is_narrowed_to_the_partitions_of_another(self):
        """The positions of one set, of the partitions of another."""
        assert only(FIRST, SECOND) == {"0": {"a": {"0": 5}, "b": {"0": 1}}}


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
