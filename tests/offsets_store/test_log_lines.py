"""Lines of the log in a process that has not configured logging, and in one that has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.log_lines import LOGGERS, one_line

ROOT = Path(__file__).parents[2]


def lines_of(setup=""):
    """What a new process writes to stderr for a warning of each logger."""
    code = (
        f"import logging, pgonce.offsets_store\n{setup}\n"
        f"for name in {LOGGERS!r}:\n"
        "    logging.getLogger(name).warning('query %s: %.1f s', 'a\\nCRITICAL \\x1b[2J all lost', 1.25)"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=True)
    return done.stderr.splitlines()


# Line ends and terminal sequences in what is said of somebody else's name forge no line; numbers stay numbers.
SAID = "query a\\nCRITICAL \\x1b[2J all lost: 1.2 s"


def test_a_line_has_its_time_where_nobody_has_configured_logging():
    """In Spark's Python workers Python itself writes warnings, without a time; a name forges no line."""
    lines = lines_of()
    assert len(lines) == len(LOGGERS)
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z " + re.escape(SAID), line) for line in lines)


def test_a_line_is_the_users_to_lay_out_where_there_is_a_handler():
    """A user's own layout gets the text, in which a name forges no line either."""
    assert lines_of("logging.basicConfig(format='mine: %(message)s')") == [f"mine: {SAID}"] * len(LOGGERS)


def test_all_loggers_are_known():
    """A logger with a name that is not in the list would write lines without a time."""
    sources = [*(ROOT / "sink").rglob("*.py"), *(ROOT / "offsets_store").rglob("*.py")]
    named = {name for path in sources for name in re.findall(r'getLogger\("(pgonce[^"]*)"\)', path.read_text())}
    assert named == set(LOGGERS)


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
