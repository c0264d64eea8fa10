"""Lines of the log in a process that has not configured logging, and in one that has."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.offsets_store.errors import OffsetsError
from pgonce.offsets_store.log_lines import LOGGERS, in_command, one_line

ROOT = Path(__file__).parents[2]


def lines_of(setup="", level="warning", asked=""):
    """What a new process, with PGONCE_LOG as ``asked``, writes to stderr for a line of each logger."""
    code = (
        f"import logging, pgonce.offsets_store\n{setup}\n"
        f"for name in {LOGGERS!r}:\n"
        f"    logging.getLogger(name).{level}(\n"
        "        'query %s: %.1f s', 'a\\nCRITICAL \\x1b[2J all lost', 1.25, extra=dict(rows=7)\n"
        "    )"
    )
    environment = {**os.environ, "PGONCE_LOG": asked}
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, check=True, env=environment)
    return done.stderr.splitlines()


# A handler at our logger alone, whose lines nobody else gets.
MINE = (
    "handler = logging.StreamHandler()\n"
    "handler.setFormatter(logging.Formatter('mine: %(message)s'))\n"
    "logging.getLogger('pgonce').addHandler(handler)\n"
    "logging.getLogger('pgonce').propagate = False"
)
# Line ends and terminal sequences in what is said of somebody else's name forge no line; numbers stay numbers.
DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z "
SAID = "query a\\nCRITICAL \\x1b[2J all lost: 1.2 s"


def test_a_line_has_its_time_where_nobody_has_configured_logging():
    """In Spark's Python workers Python itself writes warnings, without a time; a name forges no line."""
    lines = lines_of()
    assert len(lines) == len(LOGGERS)
    assert all(re.fullmatch(DATE + re.escape(SAID), line) for line in lines)


def test_a_line_is_the_users_to_lay_out_where_there_is_a_handler():
    """A user's own layout gets the text, in which a name forges no line either."""
    assert lines_of("logging.basicConfig(format='mine: %(message)s')") == [f"mine: {SAID}"] * len(LOGGERS)


def test_lines_below_a_warning_are_shown_if_the_environment_asks_for_them():
    """Where nobody can configure logging, PGONCE_LOG does, and says how much."""
    assert lines_of(level="info") == []
    shown = lines_of(level="info", asked="info")
    assert len(shown) == len(LOGGERS)
    assert all(re.fullmatch(f"{DATE}INFO {re.escape(SAID)}", line) for line in shown)
    assert lines_of(level="debug", asked="info") == []
    assert len(lines_of(level="debug", asked=" DEBUG ")) == len(LOGGERS)


def test_lines_are_json_if_the_environment_asks_for_it():
    """Each line is an object with the keys that its caller gave, and a traceback stays in the line."""
    lines = [json.loads(line) for line in lines_of(level="info", asked="json")]
    assert [line["logger"] for line in lines] == list(LOGGERS)
    for line in lines:
        assert re.fullmatch(DATE.strip(), line.pop("time"))
        assert line == {"level": "INFO", "logger": line["logger"], "message": SAID, "rows": 7}
    failing = "try: 1 / 0\nexcept Exception: logging.getLogger('pgonce').exception('no')\n"
    first = json.loads(lines_of(failing, asked="json")[0])
    assert first["message"] == "no"
    assert first["traceback"].endswith("ZeroDivisionError: division by zero")


@pytest.mark.parametrize("setup", ["logging.basicConfig(format='mine: %(message)s')", MINE])
def test_the_environment_takes_nothing_from_a_users_handler(setup):
    """A line that a handler of the user's gets is not written a second time, whatever PGONCE_LOG says."""
    assert lines_of(setup, level="info", asked="json") == [f"mine: {SAID}"] * len(LOGGERS)


def test_a_word_that_the_environment_variable_does_not_have_is_said():
    """A mistake in it fails no query, and is told once."""
    first, *others = lines_of(asked="loud")
    assert "PGONCE_LOG=loud" in first
    assert len(others) == len(LOGGERS)


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


@given(st.text() | st.text("-abcXY_0 ;$`'\"\n\x1b/"), st.sampled_from(["QUERY", "CODE", "CHECKPOINT", "SINK"]))
def test_a_text_is_one_word_of_a_command_or_is_not_in_it(text, means):
    """A shell takes it for that word, and no command takes it for an option."""
    word = in_command(text, means)
    assert word == means or shlex.split(word) == [text]
    assert not word.startswith("-")
    assert word.isprintable()


@pytest.mark.parametrize(
    ("text", "means", "word"),
    [
        ("0f6c0000-0000-0000-0000-000000000001", "QUERY", "0f6c0000-0000-0000-0000-000000000001"),
        ("another query's name", "QUERY", "QUERY"),
        ("orders", "QUERY", "QUERY"),
        ("TYPE_MISMATCH", "CODE", "TYPE_MISMATCH"),
        ("java.io.IOException", "CODE", "CODE"),
        ("s3a://bucket/a b", "CHECKPOINT", "'s3a://bucket/a b'"),
        ("--yes", "CHECKPOINT", "CHECKPOINT"),
        ("", "SINK", "SINK"),
        (None, "CHECKPOINT", "CHECKPOINT"),
    ],
)
def test_an_id_is_one_of_sparks_and_a_code_one_of_ours(text, means, word):
    """A word that is neither stands for nothing that the ledger may say."""
    assert in_command(text, means) == word
