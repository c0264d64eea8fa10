"""What `make test` leaves out is what somebody meant to leave out."""

from __future__ import annotations

from support.fixtures.thorough import IN_MANY_WAYS, LONG, THOROUGH, a_sixth_of, names_of
from support.named_tests import ROOT, is_there


def is_test(name):
    """Whether a folder, a file, a class or a test has this name."""
    return (ROOT / name).is_dir() or is_there(name)


def test_what_is_left_out_exists():
    """A test that was renamed is not silently part of `make test` again, and neither is one of many ways."""
    assert [name for name in [*THOROUGH, *LONG, *IN_MANY_WAYS] if not is_test(name)] == []
    assert [name for name in IN_MANY_WAYS if set(THOROUGH).isdisjoint(names_of(name))] == []


def test_a_sixth_is_never_nothing_and_the_same_in_every_run():
    """Each test remains in one combination at least, whatever the order in which they were collected."""
    for count, sixth in [(1, 1), (2, 1), (6, 1), (7, 2), (33, 6)]:
        nodeids = [f"tests/test_a.py::test_b[{nth}]" for nth in range(count)]
        assert len(a_sixth_of(nodeids)) == sixth
        assert a_sixth_of(nodeids) == a_sixth_of(nodeids[::-1])
