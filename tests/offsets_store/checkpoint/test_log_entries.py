"""What each file of a checkpoint says, and what is said of one that is damaged: no I/O, no Spark."""

from __future__ import annotations

import pickle

import pytest

from pgonce.offsets_store.checkpoint.log_entries import (
    decode,
    parse_commit_log,
    parse_initial_offset,
    parse_offset_log,
    parse_query_id,
)
from pgonce.offsets_store.errors import CheckpointError

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
        with pytest.raises(CheckpointError, match=r"\[CHECKPOINT_MALFORMED\]") as caught:
            parse_offset_log(text, "The checkpoint's offsets/3")
        assert str(caught.value).startswith("[CHECKPOINT_MALFORMED] The checkpoint's offsets/3 ")
        assert "Nothing was written. Help: " in str(pickle.loads(pickle.dumps(caught.value)))


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
    def test_each_version_of_a_commit_entry_is_read(self, text, version, metadata):
        """Versions 1 to 3 are read, and a missing line counts as {}, as it does for Spark."""
        log = parse_commit_log(text)
        assert (log.version, log.metadata, log.text) == (version, metadata, text)

    @pytest.mark.parametrize(
        ("data", "offset"),
        [
            # Kafka's start stands behind a NUL byte, since Spark 2.2 behind a version line too.
            (b'\x00v1\n{"t":{"1":0,"0":5}}', {"t": {"0": 5, "1": 0}}),
            (b'\x00v1\n{"t":{"1":0,"0":5}}\n', {"t": {"0": 5, "1": 0}}),
            (b'\x00{"t":{"1":0,"0":5}}', {"t": {"0": 5, "1": 0}}),
            # A query by subscribePattern may begin before its first topic exists.
            (b"\x00v1\n{}", {}),
            # The file source's list and the rate source's clock reading have that name too, but no offset.
            (b'v1\n{"path":"file:///in/a.json","batchId":0}', None),
            (b"v1\n1795208175494", None),
            (b"", None),
        ],
    )
    def test_the_start_of_batch_0_is_read_in_each_form(self, data, offset):
        """Of Kafka, in each form; nothing for other sources."""
        assert parse_initial_offset(data) == offset

    @pytest.mark.parametrize(
        ("parse", "data", "code"),
        [
            (parse_offset_log, "v3\n{}\n1", "PGONCE_TOO_OLD"),
            (parse_commit_log, "v4\n{}", "PGONCE_TOO_OLD"),
            (parse_commit_log, "", "CHECKPOINT_MALFORMED"),
            (parse_commit_log, 'v1\n{"next', "CHECKPOINT_MALFORMED"),
            # What holds no UUID under id is no query's metadata.
            *((parse_query_id, text, "CHECKPOINT_MALFORMED") for text in ("", "{}", '{"id":7}', '{"id":"x"}')),
            *((parse_query_id, text, "CHECKPOINT_MALFORMED") for text in (f'"{QUERY_ID}"', '{"id":"f4f7c9')),
            # A start that was cut short would pass for a new query's.
            (parse_initial_offset, b"\x00v1\n", "CHECKPOINT_MALFORMED"),
            (parse_initial_offset, b'\x00v1\n{"t":{"0"', "CHECKPOINT_MALFORMED"),
            (parse_initial_offset, b'\x00v1\n{"t":{"0":\xff', "CHECKPOINT_MALFORMED"),
            (parse_initial_offset, b'\x00v2\n{"t":{"0":5}}', "PGONCE_TOO_OLD"),
        ],
    )
    def test_what_is_unknown_or_damaged_is_refused(self, parse, data, code):
        """It is an error, and not an absent file."""
        with pytest.raises(CheckpointError, match=code):
            parse(data)
