"""What the files of a checkpoint say, and how two sets of offsets stand to each other: no I/O, no Spark."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.offsets_store.checkpoint.log_entries import (
    decode,
    parse_commit_log,
    parse_initial_offset,
    parse_offset_log,
    parse_query_id,
)
from pgonce.offsets_store.errors import CheckpointError
from pgonce.offsets_store.offsets.compare import (
    CurrentOffset,
    as_current,
    goes_back,
    is_kafka,
    kafka_partitions,
    parse_offset,
    same,
    says_which_rows,
)
from pgonce.offsets_store.offsets.exact_json import decode_exactly, same_json

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1795208170230,"conf":{"spark.sql.shuffle.partitions":"2"}}'
QUERY_ID = "f4f7c933-216b-4214-a5db-99a58d39e9f0"


def v1(*offsets: str) -> str:
    """Return the text of an entry of version 1 with one line for each source."""
    return "\n".join(["v1", METADATA, *offsets])


class TestOffsetLog:
    def test_version_1_numbers_the_sources_by_line(self):
        """A line after the metadata is a source's, in plan order; a dash is a source without an offset."""
        log = parse_offset_log(v1('{"logOffset":0}', "-", '{"t":{"1":7,"0":23}}'))
        assert log.version == 1
        assert log.metadata["batchTimestampMs"] == 1795208170230
        assert log.offsets == {"0": {"logOffset": 0}, "1": None, "2": {"t": {"0": 23, "1": 7}}}
        assert not log.is_continuous

    def test_version_2_names_the_sources(self):
        """A source id reaches to the first colon, whatever the JSON behind it holds; lines have no order."""
        log = parse_offset_log(f'v2\n{METADATA}\norders:{{"a:b":{{"0":1}}}}\n1:{{"logOffset":4}}\n0:-')
        assert log.offsets == {"orders": {"a:b": {"0": 1}}, "1": {"logOffset": 4}, "0": None}

    def test_text_and_hash_are_those_of_the_file(self):
        """The text gives back the very bytes of the file, line ends and all."""
        data = v1('{"path":"Straße \u2028 \U0001f600"}').encode() + b"\r\n"
        log = parse_offset_log(decode(data, "It"))
        assert log.text.encode() == data
        assert log.offsets == {"0": {"path": "Straße \u2028 \U0001f600"}}

    def test_empty_metadata_line_is_a_continuous_querys(self):
        """Continuous processing leaves the second line empty; a metadata line of {} is no such thing."""
        assert parse_offset_log('v1\n\n{"0":{"value":-2,"runTimeMs":1}}').is_continuous
        assert not parse_offset_log("v1\n{}\n3").is_continuous

    @pytest.mark.parametrize("text", ["v3\n{}\n1", "v0\n{}\n1", "v12\n{}\n1"])
    def test_other_versions_are_refused(self, text):
        """A version that Spark may bring one day is named, never guessed at."""
        with pytest.raises(CheckpointError, match=r"newer pgonce|version line"):
            parse_offset_log(text)

    def test_unknown_version_has_its_own_code(self):
        """Only a version that is unknown asks for a newer pgonce."""
        with pytest.raises(CheckpointError) as caught:
            parse_offset_log("v3\n{}\n1")
        assert caught.value.code == "CHECKPOINT_VERSION"

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "v",
            "v1",
            "v1\n",
            "v1\n" + METADATA[:40],
            f"v1\n{METADATA}",
            f"v1\n{METADATA}\n",
            "v1\n[]\n3",
            "v1\nnull\n3",
            "{}\n3",
            "v²\n{}\n3",
            f"v2\n{METADATA}\n{{",
            f"v2\n{METADATA}\n:1",
            f"v2\n{METADATA}\n0:1\n0:2",
        ],
    )
    def test_damaged_entries_are_refused(self, text):
        """A file cut short or overwritten is an error that names the file, what it means and a way out."""
        with pytest.raises(CheckpointError) as caught:
            parse_offset_log(text, "The checkpoint's offsets/3")
        assert caught.value.code == "CHECKPOINT_MALFORMED"
        assert str(caught.value).startswith("[CHECKPOINT_MALFORMED] The checkpoint's offsets/3 ")
        assert "Nothing was written. Help: " in str(pickle.loads(pickle.dumps(caught.value)))

    def test_bytes_that_are_not_utf8_are_refused(self):
        """A byte that is no UTF-8 is an error with its position, not a replacement character."""
        with pytest.raises(CheckpointError, match=r"CHECKPOINT_MALFORMED.*from byte 2 on"):
            decode(b"v1\xff", "The file")


class TestOtherFiles:
    @pytest.mark.parametrize(
        ("text", "version", "metadata"),
        [
            ('v1\n{"nextBatchWatermarkMs":0}', 1, {"nextBatchWatermarkMs": 0}),
            (
                'v2\n{"nextBatchWatermarkMs":5,"stateUniqueIds":{"0":[["a"]]}}',
                2,
                {"nextBatchWatermarkMs": 5, "stateUniqueIds": {"0": [["a"]]}},
            ),
            ('v3\n{"sinkMetadataMap":{}}', 3, {"sinkMetadataMap": {}}),
            ("v1", 1, {}),
        ],
    )
    def test_commit_log(self, text, version, metadata):
        """Versions 1 to 3 are read, and a missing line counts as {}, as it does for Spark."""
        log = parse_commit_log(text)
        assert (log.version, log.metadata, log.text) == (version, metadata, text)

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            ("v4\n{}", "CHECKPOINT_VERSION"),
            ("", "CHECKPOINT_MALFORMED"),
            ('v1\n{"next', "CHECKPOINT_MALFORMED"),
        ],
    )
    def test_commit_log_refused(self, text, code):
        """A commit entry that is unknown or damaged is an error."""
        with pytest.raises(CheckpointError) as caught:
            parse_commit_log(text)
        assert caught.value.code == code

    def test_query_id(self):
        """The id is taken as it is written."""
        assert parse_query_id(f'{{"id":"{QUERY_ID}"}}') == QUERY_ID

    @pytest.mark.parametrize("text", ["", "{}", '{"id":7}', '{"id":"x"}', f'"{QUERY_ID}"', '{"id":"f4f7c9'])
    def test_query_id_refused(self, text):
        """What holds no UUID under id is no query's metadata."""
        with pytest.raises(CheckpointError, match="CHECKPOINT_MALFORMED"):
            parse_query_id(text)

    @pytest.mark.parametrize(
        "data", [b'\x00v1\n{"t":{"1":0,"0":5}}', b'\x00v1\n{"t":{"1":0,"0":5}}\n', b'\x00{"t":{"1":0,"0":5}}']
    )
    def test_initial_offset(self, data):
        """Kafka's start of batch 0 stands behind a NUL byte, since Spark 2.2 behind a version line too."""
        assert parse_initial_offset(data) == {"t": {"0": 5, "1": 0}}

    @pytest.mark.parametrize("data", [b'v1\n{"path":"file:///in/a.json","batchId":0}', b"v1\n1795208175494", b""])
    def test_initial_offset_of_other_sources(self, data):
        """The file source's list and the rate source's clock reading have that name too, but no offset."""
        assert parse_initial_offset(data) is None

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"\x00v1\n", "CHECKPOINT_MALFORMED"),
            (b'\x00v1\n{"t":{"0"', "CHECKPOINT_MALFORMED"),
            (b'\x00v1\n{"t":{"0":\xff', "CHECKPOINT_MALFORMED"),
            (b'\x00v2\n{"t":{"0":5}}', "CHECKPOINT_VERSION"),
        ],
    )
    def test_initial_offset_refused(self, data, code):
        """A damaged start is an error, not an absent one: a wrong start would pass for a new query's."""
        with pytest.raises(CheckpointError) as caught:
            parse_initial_offset(data)
        assert caught.value.code == code


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

    @given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
    def test_decoding_loses_nothing(self, value):
        """Whatever is decoded at all is written and read again as the same value, and as no other."""
        text = json.dumps([value])
        try:
            decoded = decode_exactly(text)
        except ValueError:
            return
        again = json.loads(json.dumps(decoded), parse_float=Decimal)
        assert again == json.loads(text, parse_float=Decimal)
        assert same_json(decoded, json.loads(text))


class TestKafka:
    @pytest.mark.parametrize(
        "offset",
        [{"t": {"0": 23}}, {"t": {"0": 0, "10": 2**63 - 1}, "u.v-w": {"3": 5}}],
    )
    def test_is_kafka(self, offset):
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
    def test_is_not_kafka(self, offset):
        """Anything else, -1 and -2 (latest and earliest, no positions) and the continuous rate source too."""
        assert not is_kafka(offset)

    def test_says_which_rows(self):
        """One opaque source is enough for equal offsets to prove nothing, and so is no source."""
        assert says_which_rows({"0": {"t": {"0": 1}}, "orders": {"u": {"0": 1}}})
        assert not says_which_rows({"0": {"t": {"0": 1}}, "1": {"logOffset": 0}})
        assert not says_which_rows({"0": {"t": {"0": 1}}, "1": None})
        assert not says_which_rows({})
        assert not says_which_rows(None)

    def test_kafka_partitions(self):
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
            st.tuples(st.sampled_from("tu"), st.integers(0, 11)),
            st.tuples(st.integers(0, 9), st.integers(0, 9)),
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

    def test_as_current(self):
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
    def test_unknown_equals_nothing(self, unknown):
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
    def test_differing(self, a, b):
        """Another source, another type of JSON value or a last digit is a difference."""
        assert not same(a, b)
        assert not same(b, a)

    def test_null_inside_an_offset_is_a_value(self):
        """Only a whole offset can be unknown; a null that a source wrote inside of it is what it wrote."""
        assert same({"0": {"x": None}}, {"0": {"x": None}})
