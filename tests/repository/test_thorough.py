"""What `make test` leaves out is what somebody meant to leave out."""

from __future__ import annotations

from support.fixtures.thorough import BY_THIRDS, LONG, THOROUGH, a_third_of, names_of
from support.named_tests import ROOT, is_there


def is_test(name):
    """Whether a folder, a file, a class or a test has this name."""
    return (ROOT / name).is_dir() or is_there(name)


def test_what_is_left_out_exists():
    """A test that was renamed is not silently part of `make test` again, and what runs by thirds is no part of it."""
    assert [name for name in [*THOROUGH, *LONG, *BY_THIRDS] if not is_test(name)] == []
    assert [name for name in BY_THIRDS if set(THOROUGH).isdisjoint(names_of(name))] == []


def test_a_third_is_never_nothing_and_the_same_in_every_run():
    """Each test remains in one combination at least, whatever the order in which they were collected."""
    for count, third in [(1, 1), (2, 1), (3, 1), (4, 2), (33, 11)]:
        nodeids = [f"tests/test_a.py::test_b[{nth}]" for nth in range(count)]
        assert len(a_third_of(nodeids)) == third
        assert a_third_of(nodeids) == a_third_of(nodeids[::-1])
