"""Options of batch jobs: what is refused before a row moves, and what the error says."""

from __future__ import annotations

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.options.job_options import parse_job_options
from pgonce.sink.options.sink_options import parse_options

GIVEN = {"url": "", "table": "events", "batchKey": "2026-11-20"}


def test_what_is_given_is_parsed():
    """Keys may come in any case, as Spark hands them over in lower case."""
    more = {"MODE": "upsert", "keys": "id,day", "inlinebytes": "0", "batchhash": "true", "sinkName": "s"}
    options = parse_job_options({**GIVEN, **more}, overwrite=False)
    assert (options.batch_key, options.batch_hash, options.inline_bytes) == ("2026-11-20", True, 0)
    assert (options.destination.mode, options.destination.keys) == ("upsert", ("id", "day"))
    assert options.sink_label == "s"


def test_sparks_save_mode_chooses_between_append_and_complete():
    """Spark's overwrite is our complete."""
    assert parse_job_options(GIVEN, overwrite=False).destination.mode == "append"
    assert parse_job_options(GIVEN, overwrite=True).destination.mode == "complete"
    assert parse_job_options({**GIVEN, "mode": "complete"}, overwrite=True).destination.mode == "complete"


@pytest.mark.parametrize("key", [None, "", "  "])
def test_a_job_needs_a_key(key):
    """Without one, a retry cannot be told from a new job, and the error says what to use."""
    given = {name: value for name, value in {**GIVEN, "batchKey": key}.items() if value is not None}
    with pytest.raises(ConfigurationError, match="NO_BATCH_KEY.*retry.*never the time"):
        parse_job_options(given, overwrite=False)


@pytest.mark.parametrize(
    ("more", "overwrite", "words"),
    [
        ({"batchKey": "k" * 251}, False, "BAD_OPTION.*251 characters"),
        ({"batchKey": "k\0"}, False, "BAD_OPTION.*batchKey"),
        ({"mode": "upsert", "keys": "id"}, True, r'CLASHING_OPTIONS.*\.mode\("overwrite"\)'),
        ({"mode": "complete"}, False, r'CLASHING_OPTIONS.*\.mode\("append"\)'),
        ({"checkpointLocation": "/c"}, False, "CLASHING_OPTIONS.*checkpointLocation is an option of streams"),
        ({"receiver": "auto"}, False, "CLASHING_OPTIONS.*receiver is an option of streams"),
        ({"positionColumns": "a,b,c"}, False, "CLASHING_OPTIONS.*positionColumns is an option of streams"),
        ({"batchkeys": "a"}, False, "UNKNOWN_OPTION.*Did you mean batchKey"),
        ({"dbtable": "a"}, False, "UNKNOWN_OPTION.*Set table"),
        ({"table": " "}, False, "NO_TABLE"),
        ({"batchHash": "yes"}, False, "BAD_OPTION.*batchHash"),
        ({"retryTimeout": "-1"}, False, "BAD_OPTION.*retryTimeout"),
    ],
)
def test_what_makes_no_sense_is_refused(more, overwrite, words):
    """The error names the option, and what to do with it."""
    with pytest.raises(ConfigurationError, match=words):
        parse_job_options({**GIVEN, **more}, overwrite=overwrite)


@pytest.mark.parametrize("name", ["batchKey", "batchHash"])
def test_a_stream_has_no_key(name):
    """Its batches are told apart by the checkpoint, and the error says so."""
    with pytest.raises(ConfigurationError, match="UNKNOWN_OPTION.*batch jobs"):
        parse_options({"table": "events", "checkpointLocation": "/c", name: "true"}, overwrite=False)
