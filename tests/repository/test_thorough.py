"""What `make test` leaves out is what somebody meant to leave out."""

from __future__ import annotations

import pytest
from support.fixtures.thorough import LONG, THOROUGH
from support.named_tests import ROOT, is_there


@pytest.mark.parametrize("name", [*THOROUGH, *LONG])
def test_what_is_left_out_exists(name):
    """A test that was renamed is not silently part of `make test` again."""
    assert (ROOT / name).is_dir() or is_there(name)
