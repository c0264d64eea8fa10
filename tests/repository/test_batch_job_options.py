"""docs/batch-jobs.md lists the options of streams that a batch job refuses."""

from __future__ import annotations

import pytest
from support.pages import DOCS, quoted_names, sections

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.options.option import Way
from pgonce.sink.options.reading import options_of
from pgonce.sink.options.sink_options import parse_job_options

PART = sections((DOCS / "batch-jobs.md").read_text(), 2)["Options"]
_, REFUSED = PART.split("These are refused")


def listed(text: str) -> set[str]:
    """The options in the second column of a table."""
    rows = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")]
    return quoted_names("\n".join(rows))


def test_the_list_is_what_the_table_of_options_says():
    """Each option of streams that a job does not take is listed once."""
    taken, streams = ({option.name for option in options_of(way)} for way in (Way.JOB, Way.STREAM))
    assert listed(REFUSED) == streams - taken - {"kafkaOptions"}


def test_each_of_them_is_refused():
    """With the code that the page names."""
    for option in listed(REFUSED):
        with pytest.raises(ConfigurationError) as refused:
            parse_job_options({"table": "orders", "batchKey": "2026-11-20", option: "5"}, overwrite=False)
        assert refused.value.code == "UNKNOWN_OPTION", option
