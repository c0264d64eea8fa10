"""Numbers in few characters."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pgonce.cli.answers.figures import count_text


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0"), (0.4, "<1"), (1, "1"), (999.4, "999"), (999.6, "1.0k"), (12_345, "12.3k"), (99_949, "99.9k"),
        (99_960, "100k"), (999_600, "1.0M"), (4_500_000, "4.5M"), (None, "?"),
    ],
)  # fmt: skip
def test_a_number_goes_over_to_the_next_unit_where_it_is_rounded_up(count, shown):
    """What is shown never has a character more than the column."""
    assert count_text(count) == shown


@settings(deadline=None)
@given(st.floats(0, 9.99e14))
def test_at_most_five_characters(count):
    """Up to hundreds of trillions."""
    assert len(count_text(count)) <= 5
