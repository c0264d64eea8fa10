"""Which offsets of a consumer group have to change, and which may not be touched."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.kafka.groups import GroupOffset
from pgonce.offsets_store.recovery.export_group import (
    Move,
    beyond_the_log,
    ends_to_export,
    mark_of,
    moves_of,
    not_ours,
    strangers,
)
from pgonce.offsets_store.status.stored import StoredWriter

OURS = mark_of("q1")


def writer(end, **changes):
    """A writer that stands at ``end``."""
    now = datetime.now(timezone.utc)
    fields = {
        "query_id": "q1",
        "query_name": "orders",
        "sink_name": "public.orders",
        "checkpoint_location": None,
        "run_id": "run 1",
        "generation": 0,
        "batch_id": 3,
        "end_offsets": end,
        "guarantee": "offsets",
        "replays": 0,
        "disagreements": 0,
        "replaces": None,
        "replaced_by": None,
        "retired_at": None,
        "created_at": now,
        "updated_at": now,
    }
    return StoredWriter(**{**fields, **changes})


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ([{"0": {"t": {"0": 10, "1": 20}}}], {("t", 0): 10, ("t", 1): 20}),
        ([{"0": {"t": {"0": 10, "1": 20}}}, {"0": {"t": {"0": 12, "1": 18}}}], {("t", 0): 10, ("t", 1): 18}),
        ([{"0": {"t": {"0": 10, "1": 5}}}, {"0": {"t": {"0": 7}}}], {("t", 0): 7}),
        ([{"0": {"t": {"0": 10}}, "1": {"t": {"0": 8}, "u": {"0": 1}}}], {("t", 0): 8, ("u", 0): 1}),
        ([{"0": {"t": {"0": 10}}, "1": {"logOffset": 3}}], {("t", 0): 10}),
    ],
    ids=[
        "one sink",
        "the least of two",
        "a partition that one sink does not know",
        "a topic read twice",
        "beside files",
    ],
)
def test_what_all_sinks_hold(ends, expected):
    """Nothing is exported that a sink does not hold."""
    assert ends_to_export([writer(end) for end in ends], "orders") == expected


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([{"0": {"t": {"0": 10}}}, None], "OFFSETS_UNKNOWN"),
        ([{"0": {"logOffset": 3}}], "NOT_KAFKA"),
    ],
)
def test_what_cannot_be_exported(ends, code):
    """A sink whose end nobody knows, and a source that is not Kafka, are refused."""
    with pytest.raises(OffsetsError) as refused:
        ends_to_export([writer(end) for end in ends], "orders")
    assert refused.value.code == code


def test_a_partition_that_is_shorter_than_what_was_read():
    """The next record's offset may be the end itself; of a partition that the broker does not have nothing is known."""
    ends = {("t", 0): 10, ("t", 1): 10, ("t", 2): 10}
    assert beyond_the_log(ends, {("t", 0): 10, ("t", 1): 9}) == [("t", 1)]


def test_moves():
    """Only what stands elsewhere, or was set by somebody else, is set; it may go back."""
    group = {
        ("t", 0): GroupOffset(10, OURS),
        ("t", 1): GroupOffset(30, OURS),
        ("t", 2): GroupOffset(5, "other"),
        ("x", 0): GroupOffset(1),
    }
    found = moves_of({("t", 0): 10, ("t", 1): 20, ("t", 2): 5, ("t", 3): 7}, group, OURS)
    assert found == [Move("t", 1, 30, 20), Move("t", 2, 5, 5), Move("t", 3, None, 7)]
    assert [move.goes_back for move in found] == [True, False, False]


@pytest.mark.parametrize("metadata", [None, "", "pgonce q2", "consumer"])
def test_strangers_are_named(metadata):
    """An offset that somebody else has stored is found, and the error names it."""
    group = {("t", 0): GroupOffset(10, OURS), ("t", 1): GroupOffset(77, metadata)}
    strange = strangers(group, {("t", 0): 1, ("t", 1): 1}, {OURS})
    assert strange == [("t", 1)]
    refused = not_ours("lag", group, strange)
    assert (refused.code, "t-1 at 77" in str(refused)) == ("GROUP_NOT_OURS", True)


def test_what_is_ours_or_of_other_topics_is_no_stranger():
    """The offsets of the query, of the one that it has replaced, and of other topics do not stand in the way."""
    group = {("t", 0): GroupOffset(10, OURS), ("t", 1): GroupOffset(7, "pgonce q0"), ("other", 0): GroupOffset(1)}
    assert not strangers(group, {("t", 0): 1, ("t", 1): 1}, {OURS, "pgonce q0"})
