"""A batch job refuses the options of streams that docs/options.md does not mark for it."""

from __future__ import annotations

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.options.option import Way
from pgonce.sink.options.reading import options_of
from pgonce.sink.options.sink_options import parse_job_options


def test_options_of_streams_alone_are_refused():
    """Before a row is computed, and whatever the value is."""
    taken, streams = ({option.name for option in options_of(way)} for way in (Way.JOB, Way.STREAM))
    only_streams = streams - taken - {"kafkaOptions"}
    assert {"route", "deadLetters", "checkpointLocation", "adoptCheckpoint", "receiver"} <= only_streams
    for option in only_streams:
        with pytest.raises(ConfigurationError) as refused:
            parse_job_options({"table": "orders", "batchKey": "2026-11-20", option: "5"}, overwrite=False)
        assert refused.value.code == "UNKNOWN_OPTION", option
