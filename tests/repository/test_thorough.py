"""What `make test` leaves out is what somebody meant to leave out."""

from __future__ import annotations

import pytest
from support.fixtures.thorough import BY_THIRDS, LONG, THOROUGH, a_third_of, names_of
from support.named_tests import ROOT, is_there


@pytest.mark.parametrize("name", [*THOROUGH, *LONG])
def test_what_is_left_out_exists(name):
    """A test that was renamed is not silently part of `make test` again."""
    assert (ROOT / name).is_dir() or is_there(name)


@pytest.mark.parametrize("name", BY_THIRDS)
def test_what_is_run_by_thirds_exists_and_is_no_part_of_make_test(name):
    """A test of which `make test-all` runs a third is one that `make test` leaves out."""
    assert (ROOT / name).is_dir() or is_there(name)
    assert not set(THOROUGH).isdisjoint(names_of(name))


@pytest.mark.parametrize(("count", "third"), [(1, 1), (2, 1), (3, 1), (4, 2), (33, 11)])
def test_a_third_is_never_nothing_and_the_same_in_every_run(count, third):
    """Each test remains in one combination at least, whatever the order in which they were collected."""
    nodeids = [f"tests/test_a.py::test_b[{nth}]" for nth in range(count)]
    assert len(a_third_of(nodeids)) == third
    assert a_third_of(nodeids) == a_third_of(nodeids[::-1])
