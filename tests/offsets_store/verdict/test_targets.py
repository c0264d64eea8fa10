"""What is told from the oids of a batch's tables, and of those before."""

import pytest

from pgonce.offsets_store.verdict.targets import changed_targets, known_targets


@pytest.mark.parametrize(
    ("before", "now", "is_one_table", "says"),
    [
        (None, {"public.a": 1}, True, None),
        ({}, {"public.a": 1}, True, None),
        ({"public.a": 1}, {"public.a": 1}, True, None),
        ({"public.a": 1}, {}, True, None),
        ({"public.a": 1}, {"public.a": 2}, True, "dropped and created again"),
        ({"public.a": 1}, {"public.a": 2}, False, "dropped and created again"),
        ({"public.a": 1}, {"public.b": 1}, True, "was called public.a"),
        ({"public.a": 1}, {"public.b": 2}, True, "earlier batches went into public.a"),
        # A function may write to a table for the first time at any batch.
        ({"public.a": 1}, {"public.b": 2}, False, None),
    ],
)
def test_a_table_is_known_by_its_oid(before, now, is_one_table, says):
    """A name that means another table, a table with another name, and another table are three things."""
    changes = changed_targets(before, now, is_one_table=is_one_table)
    if says is None:
        assert changes == {}
    else:
        (name,) = now
        assert says in changes[name]


def test_what_a_function_has_not_written_to_this_time_is_remembered():
    """A table that is written to now and then is compared with the last time; one that was renamed has one name."""
    known = known_targets({"public.a": 1, "public.b": 2}, {"public.c": 2}, is_one_table=False)
    assert known == {"public.a": 1, "public.c": 2}
    assert known_targets({"public.a": 1}, {"public.b": 2}, is_one_table=True) == {"public.b": 2}
    assert known_targets({"public.a": 1}, {}, is_one_table=False) == {"public.a": 1}
