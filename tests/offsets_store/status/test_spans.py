"""Time spans as people write them."""

from __future__ import annotations

import doctest

import pytest

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.offsets_store.status import spans


def test_the_examples_hold():
    """The docstrings say which forms there are."""
    assert doctest.testmod(spans).failed == 0


def test_another_form_is_refused():
    """With what to write; a number alone has no unit, and is none."""
    for text in ("", "5", "m", "-5m", "5 minutes", "٣m"):
        with pytest.raises(ConfigurationError, match="Write 90s, 5m, 2h or 1d") as refused:
            spans.parse_span(text)
        assert refused.value.code == "BAD_OPTION"
