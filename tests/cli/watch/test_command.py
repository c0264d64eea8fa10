"""The command `pgonce watch` in a real terminal, and where it cannot open its screen."""

from __future__ import annotations

import re
import sys

import psycopg
import pytest
from support.recoveries import history
from support.stopped_query import entries, write_checkpoint
from support.terminal import Terminal
from support.watched import fail, fill

from pgonce.cli.terms import ExitCode
from pgonce.cli.watch.command import doctor_of


@pytest.fixture
def terminal(url):
    """Start `pgonce watch` in a terminal."""
    opened = []

    def start(*arguments, **environment):
        opened.append(Terminal("-m", "pgonce", "watch", "--url", url, *arguments, **environment))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_in_a_terminal(url, terminal):
    """It opens, shows the queries, takes keys, and leaves the terminal as it was."""
    fill(url, 2)
    fail(url, "query_2")
    screen = terminal()
    screen.read_until(lambda written: b"query_1" in written and b"refused" in written)
    screen.press("\r")
    screen.read_until(lambda written: b"Column amount is text." in written)
    screen.press("q")
    assert screen.wait() == 0
    # The other screen of the terminal was left, and the cursor is seen again.
    assert b"\x1b[?1049l" in screen.written
    assert b"\x1b[?25h" in screen.written


def test_without_colours_and_without_unicode(url, terminal):
    """With NO_COLOR no colour is written, and in the locale C nothing but ASCII, however the query is called."""
    fill(url, 2)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE pgonce.writers SET query_name = 'bücher' WHERE query_name = 'query_1'")
    screen = terminal(LANG="C", NO_COLOR="1")
    written = screen.read_until(lambda written: b"query_2" in written and rb"b\xfccher" in written)
    assert written.isascii()
    styles = {code for style in re.findall(rb"\x1b\[([0-9;]*)m", written) for code in style.split(b";")}
    assert styles <= {b"", b"0", b"1", b"2", b"4", b"7", b"39", b"49"}


@pytest.mark.no_ledger
def test_what_fails_is_said_before_a_screen_opens(pgonce, terminal):
    """No ledger, or no terminal: a sentence, an exit code, and no screen."""
    refused = pgonce("watch")
    assert refused.exit_code == ExitCode.USAGE
    assert "needs a terminal" in refused.stderr
    screen = terminal()
    assert screen.wait() == ExitCode.FAILED
    assert b"NO_LEDGER" in screen.written
    assert b"\x1b[?1049h" not in screen.written


def test_without_textual(pgonce, monkeypatch):
    """The error names the extra that brings it, and what shows the same without it."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "textual"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    monkeypatch.delitem(sys.modules, "pgonce.cli.watch.screen", raising=False)
    refused = pgonce("watch")
    assert refused.exit_code == ExitCode.FAILED
    assert "[NO_TEXTUAL]" in refused.stderr
    assert "pip install 'pgonce[watch]'" in refused.stderr
    assert "pgonce status --watch" in refused.stderr


class TestDoctor:
    def test_what_doctor_says(self, url, tmp_path):
        """Where the checkpoint can be read, its lines are those of `pgonce doctor`."""
        history(url, 5)
        location = str(write_checkpoint(tmp_path / "ckpt", entries(*range(6)), range(6)))
        with psycopg.connect(url) as connection:
            query_id, sink = connection.execute("SELECT query_id, sink_name FROM pgonce.writers").fetchone()
            connection.execute("UPDATE pgonce.writers SET checkpoint_location = %s", [location])
        said = doctor_of(url, query_id, sink)
        assert said[0].startswith(f"Checkpoint {location} of query {query_id}")
        assert any("Next start: batch 6" in line for line in said)

    def test_where_to_type_it(self, url, tmp_path):
        """Where the checkpoint is on another host, or unknown, or the query has none, the command is shown."""
        fill(url, 1)
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.writers SET checkpoint_location = %s", [f"{tmp_path}/not here"])
            query_id, sink = connection.execute("SELECT query_id, sink_name FROM pgonce.writers").fetchone()
        typed = "Help: Type where it can be read: pgonce doctor CHECKPOINT"
        assert typed in doctor_of(url, query_id, sink)[-1]
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.writers SET checkpoint_location = NULL")
        assert typed in doctor_of(url, query_id, sink)[-1]
        assert "QUERY_NOT_FOUND" in doctor_of(url, "no such query", None)[0]
