"""Lines of a screen: their width, what a terminal obeys, and what is drawn without Unicode."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from pgonce.cli.watch.lines import Marks, clipped, is_ascii_only, width_of, wrapped

HOSTILE = "a\x1b[31mb\nc\rd\u202ee\x9b2J[bold]f[/]"


class TestFit:
    @settings(deadline=None)
    @given(st.text(), st.integers(0, 40), st.booleans(), st.sampled_from(["start", "middle", "end"]), st.booleans())
    def test_a_cell_is_exactly_as_wide_as_asked(self, text, width, right, cut, ascii_only):
        """Whatever the text is, and wherever it is cut; and nothing in it is for the terminal."""
        cell = Marks(ascii_only).fit(text, width, right=right, cut=cut)
        assert cell_len(cell) == width
        assert cell.isprintable()
        assert cell.isascii() or not ascii_only

    def test_where_it_is_cut(self):
        """At its end, in its middle or at its start; dots show that it was."""
        marks = Marks()
        assert marks.fit("warehouse.orders", 9) == "warehous…"
        assert marks.fit("orders_eu_17", 9, cut="middle") == "orde…u_17"
        assert marks.fit("warehouse.orders", 9, cut="start") == "…e.orders"
        assert Marks(ascii_only=True).fit("warehouse.orders", 9) == "warehou.."

    def test_what_a_terminal_obeys_is_shown_as_text(self):
        """Escapes, line breaks and marks that turn text around are written out; brackets are brackets."""
        assert Marks().clean(HOSTILE) == r"a\x1b[31mb\nc\rd\u202ee\x9b2J[bold]f[/]"


@settings(deadline=None)
@given(st.lists(st.text(max_size=20), max_size=5), st.integers(0, 40))
def test_a_line_ends_where_the_screen_does(parts, width):
    """It is cut in the part that goes over the edge; a line that fits stays as it is."""
    line = tuple((Marks().clean(text), "") for text in parts)
    cut = clipped(line, width, Marks())
    assert width_of(cut) <= width
    assert cut == line or width_of(line) > width


class TestWrapped:
    @settings(deadline=None)
    @given(st.text(), st.integers(4, 60))
    def test_no_line_is_wider_than_the_screen(self, text, width):
        """A word that is longer than a line is broken."""
        lines = wrapped(text, width, Marks(), indent="  ")
        # An indent that leaves no room takes what it needs.
        spaces = len(text) - len(text.lstrip(" "))
        assert all(width_of(line) <= max(width, 2 + spaces + 2) for line in lines)

    def test_between_words_and_with_its_indent(self):
        """Lines end between words, and all of them are indented as the text was."""
        assert [line[0][0] for line in wrapped("  one two three", 10, Marks())] == ["  one two", "  three"]

    def test_text_without_a_letter(self):
        """It is one empty line, so that what follows a label is never missing."""
        assert wrapped("", 10, Marks()) == wrapped("   ", 10, Marks()) == [(("", ""),)]

    def test_a_long_word(self):
        """A path goes over several lines, and no letter of it is lost."""
        path = "/checkpoints/" + "x" * 50
        assert "".join(line[0][0] for line in wrapped(path, 20, Marks())) == path


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LANG": "C"}, True),
        ({}, True),
        ({"LANG": "en_US.UTF-8"}, False),
        ({"LANG": "de_DE.utf8"}, False),
        ({"LANG": "en_US.ISO-8859-1"}, True),
        ({"LANG": "en_US.UTF-8", "LC_ALL": "C"}, True),
        ({"LANG": "C", "LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "C", "LC_CTYPE": "en_US.UTF-8"}, False),
        ({"LANG": "C", "LC_ALL": "C.UTF-8"}, False),
    ],
)
def test_the_locale_says_whether_there_is_unicode(environment, expected):
    """As libc reads it; but Python sets LC_CTYPE=C.UTF-8 itself where the locale is C, so that alone says nothing."""
    assert is_ascii_only(environment) is expected
