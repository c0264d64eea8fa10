"""
The pictures of the site are those of their texts, and stand on a page with words for those who cannot see them.

Of ``website/draw.py``.
"""

from __future__ import annotations

import importlib.metadata
import re

import pytest
from draw import PICTURES, svg_of
from support.pages import DOCS

TEXTS = sorted(PICTURES.glob("*.txt"))


@pytest.mark.parametrize("text", TEXTS, ids=lambda path: path.stem)
def test_it_is_up_to_date(text):
    """`make docs` draws it after a change."""
    assert text.with_suffix(".svg").read_text() == svg_of(text.read_text())


def test_each_stands_on_a_page_with_words():
    """The alternative text is a sentence, not a name."""
    shown = [
        found
        for page in sorted(DOCS.glob("*.md"))
        for found in re.findall(r"^!\[(.+)\]\(pictures/(.+)\.svg\)$", page.read_text(), re.MULTILINE)
    ]
    assert sorted(name for _, name in shown) == [path.stem for path in TEXTS]
    assert [name for words, name in shown if len(words.split()) < 10] == []


def test_the_wheel_has_only_the_page_that_is_explained():
    """Pictures, and all other pages, are not installed."""
    installed = [file.parts for file in importlib.metadata.files("pgonce") if file.parts[:2] == ("pgonce", "docs")]
    assert {parts[2:] for parts in installed} == {("errors.md",)}


def test_a_line_that_is_not_understood_is_not_left_out():
    """A misspelt lane, or an element that there is not, ends the drawing."""
    for line in ["lanes A | B\nA > C: x", "lanes A | B\nfraem x", "ticks 1 2\nbar 1: x"]:
        with pytest.raises((KeyError, ValueError)):
            svg_of(line)
