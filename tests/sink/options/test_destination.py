"""What users may ask for where rows are written by key, and what is refused before a row moves."""

from __future__ import annotations

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.options.destination import Changes, Existing, destination
from pgonce.sink.options.sink_options import parse_options

LEAST = {"url": "host=db", "table": "events", "checkpointLocation": "/ckpt"}


def parse(**options):
    """Where rows go, as the sink's options say it."""
    return parse_options(LEAST | options, overwrite=False).destination


def test_the_options_reach_the_settings_that_they_name():
    """What says which rows delete, what that does, and what becomes of a stored row."""
    where = parse(mode="apply", changeFeed="Debezium", deletes="soft:gone_at", orderBy="source.lsn")
    assert where.changes == Changes(feed="debezium", deletes="soft", soft_column="gone_at")
    assert parse(mode="apply", deleteWhen="is_deleted").changes == Changes(delete_when="is_deleted")
    existing = {"onlyNewer": "true", "tombstoneDays": "3", "updateColumns": "a, b", "keepWhere": "?"}
    assert parse(mode="upsert", orderBy="seq", **existing).existing == Existing("update", True, 3, ("a", "b"), "?")
    assert parse(mode="upsert", onConflict="ignore").existing.on_conflict == "ignore"


def test_an_argument_means_what_the_option_of_its_name_means():
    """ForeachBatch takes the same as keyword arguments."""
    by_argument = destination(
        "events", "apply", ["id"], "seq", delete_when="gone", only_newer=True, update_columns=["a"]
    )
    by_option = parse(mode="apply", keys="id", orderBy="seq", deleteWhen="gone", onlyNewer="true", updateColumns="a")
    assert by_argument == by_option


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"mode": "apply"}, "OPTION_MISSING"),
        ({"mode": "apply", "deleteWhen": "gone", "changeFeed": "delta"}, "CLASHING_OPTIONS"),
        ({"mode": "apply", "changeFeed": "oracle"}, "BAD_OPTION"),
        ({"mode": "apply", "deleteWhen": "gone", "deletes": "soft"}, "BAD_OPTION"),
        ({"mode": "apply", "deleteWhen": "gone", "deletes": "hard:column"}, "BAD_OPTION"),
        ({"mode": "apply", "deleteWhen": "gone", "deletes": "archive"}, "BAD_OPTION"),
        ({"mode": "apply", "deleteWhen": "gone", "onConflict": "ignore"}, "CLASHING_OPTIONS"),
        ({"mode": "apply", "deleteWhen": "gone", "onlyNewer": "true"}, "CLASHING_OPTIONS"),
        ({"mode": "upsert", "deleteWhen": "gone"}, "CLASHING_OPTIONS"),
        ({"mode": "upsert", "changeFeed": "delta"}, "CLASHING_OPTIONS"),
        ({"mode": "upsert", "deletes": "hard"}, "CLASHING_OPTIONS"),
        ({"mode": "upsert", "onConflict": "merge"}, "BAD_OPTION"),
        ({"mode": "upsert", "tombstoneDays": "36501"}, "BAD_OPTION"),
        ({"mode": "upsert", "onConflict": "ignore", "updateColumns": "a"}, "CLASHING_OPTIONS"),
        ({"mode": "upsert", "onConflict": "ignore", "keepWhere": ""}, "CLASHING_OPTIONS"),
        ({"keepWhere": ""}, "CLASHING_OPTIONS"),
        ({"deadLetters": "public.letters"}, "BAD_OPTION"),
        ({"maxDeadLetters": "5"}, "CLASHING_OPTIONS"),
        ({"deadLetters": "true", "maxDeadLetters": "0"}, "BAD_OPTION"),
        ({"mode": "upsert", "onConflict": "ignore", "onlyNewer": "true", "orderBy": "seq"}, "CLASHING_OPTIONS"),
        ({"onlyNewer": "true"}, "CLASHING_OPTIONS"),
        ({"updateColumns": "a"}, "CLASHING_OPTIONS"),
        ({"tombstoneDays": "3"}, "CLASHING_OPTIONS"),
        ({"schemaEvolution": "loose"}, "BAD_OPTION"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, code):
    """A setting that would have no effect, or two, is a mistake."""
    with pytest.raises(ConfigurationError, match=rf"\[{code}\]"):
        parse(**options)
