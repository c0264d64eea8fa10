"""What `make test` leaves out, and which tests begin without a ledger, is what somebody meant."""

from __future__ import annotations

from support.fixtures.postgres import WITHOUT_LEDGER
from support.fixtures.thorough import IN_MANY_WAYS, IN_SHORT, LONG, THOROUGH, names_of
from support.named_tests import ROOT, is_there


def is_test(name):
    """Whether a folder, a file, a class or a test has this name."""
    return (ROOT / name).is_dir() or is_there(name)


def test_what_is_left_out_exists():
    """A test that was renamed is not silently part of `make test` again, and neither is one of many ways."""
    assert [name for name in [*THOROUGH, *LONG, *IN_MANY_WAYS, *IN_SHORT] if not is_test(name)] == []
    assert [name for name in [*IN_MANY_WAYS, *IN_SHORT] if set(THOROUGH).isdisjoint(names_of(name))] == []
    assert [name for name in WITHOUT_LEDGER if not is_test(name)] == []
