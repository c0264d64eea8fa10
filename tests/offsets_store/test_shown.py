"""Text from outside is shown as one line that no terminal obeys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.shown import one_line


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Größe 漢 \U0001f600", "Größe 漢 \U0001f600"),
        ("a\nb\r\nc", "a\\nb\\r\\nc"),
        ("\x1b[2J\x1b]0;title\x07", "\\x1b[2J\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202egnihton\u202c", "\\u202egnihton\\u202c"),
        ("line\u2028end\u0085", "line\\u2028end\\x85"),
        ("half \ud800", "half \\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_escaped(text, shown):
    """Line ends, control sequences of 7 and 8 bits, marks that turn text around; letters of any script stay."""
    assert one_line(text) == shown


@given(st.text())
def test_it_is_one_line_and_stays_so(text):
    """Once is enough, and twice is the same."""
    shown = one_line(text)
    assert shown.isprintable()
    assert len(shown.splitlines()) <= 1
    assert one_line(shown) == shown


def test_an_error_is_one_line():
    """Spark logs it, too, and names in it may come from anywhere."""
    error = OffsetsError("QUERY_NOT_FOUND", "No query 'a\nINFO forged\x1b[2J'.", "Nothing was changed.", "Look again.")
    assert str(error) == (
        "[QUERY_NOT_FOUND] No query 'a\\nINFO forged\\x1b[2J'. Nothing was changed. Help: Look again."
    )
