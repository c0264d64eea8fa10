"""Does docs/batch-jobs.md list the options that a batch job takes, and those that it refuses?"""

from __future__ import annotations

import pytest
from support.pages import DOCS, quoted_names, sections

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.options.job_options import JOB_OPTIONS, parse_job_options
from pgonce.sink.options.sink_options import OPTIONS

PART = sections((DOCS / "batch-jobs.md").read_text(), 2)["Options"]
TAKEN, REFUSED = PART.split("These are refused")
# They are parsed, so that the error can say why a job has none.
OF_STREAMS_ALONE = {"deadLetters", "maxDeadLetters"}


def listed(text: str) -> set[str]:
    """The options in the second column of a table."""
    rows = [line.split(" | ")[1] for line in text.splitlines() if line.startswith("| ")]
    return quoted_names("\n".join(rows))


def test_the_list_is_what_the_code_takes():
    """Each option that a job takes is listed once, and no other."""
    assert listed(TAKEN) == set(JOB_OPTIONS) - OF_STREAMS_ALONE


def test_what_is_refused_are_the_other_options_of_streams():
    """Nothing that the sink has for streams is left out of the two lists."""
    assert listed(REFUSED) == {*OPTIONS, "checkpointLocation", "queryName"} - set(JOB_OPTIONS) | OF_STREAMS_ALONE


@pytest.mark.parametrize("option", sorted(listed(REFUSED)))
def test_each_of_them_is_refused(option):
    """With the code that the page names."""
    with pytest.raises(ConfigurationError) as refused:
        parse_job_options({"table": "orders", "batchKey": "2026-11-20", option: "5"}, overwrite=False)
    assert refused.value.code == "CLASHING_OPTIONS"


def test_what_is_neither_is_unknown_but_for_sparks_own():
    """A misspelt name, and a setting of Kafka's, are unknown; Spark's own do no harm."""
    given = {"table": "orders", "batchKey": "2026-11-20"}
    for option in ("tabel", "kafka.security.protocol"):
        with pytest.raises(ConfigurationError) as refused:
            parse_job_options({**given, option: "5"}, overwrite=False)
        assert refused.value.code == "UNKNOWN_OPTION"
    assert parse_job_options({**given, "path": "x", "spark.x": "y", "_x": "z"}, overwrite=False).batch_key


def test_complete_is_sparks_overwrite():
    """The mode follows from Spark's own, and is refused as an option where Spark's says something else."""
    given = {"table": "orders", "batchKey": "2026-11-20"}
    assert parse_job_options(given, overwrite=True).destination.mode == "complete"
    with pytest.raises(ConfigurationError, match="overwrite"):
        parse_job_options({**given, "mode": "complete"}, overwrite=False)
