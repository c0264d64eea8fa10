"""What the shell proposes while a command is typed."""

from __future__ import annotations

import time

import pytest
from support.ledger_history import KAFKA, OTHER, QUERY, publish
from typer.testing import CliRunner

from pgonce.cli.main import app


@pytest.fixture
def proposed(url, monkeypatch):
    """What is proposed for the last of these words, on the test's ledger."""
    monkeypatch.setenv("PGONCE_URL", url)

    def complete(*words):
        asked = {
            "_PGONCE_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(["pgonce", *words]),
            "COMP_CWORD": str(len(words)),
        }
        done = CliRunner().invoke(app, [], prog_name="pgonce", env=asked)
        assert done.stderr == ""
        return done.stdout.split()

    return complete


@pytest.fixture
def two(url):
    """Two queries, one of which has no name, and one has two sinks."""
    publish(url, 0, KAFKA, sink_name="public.totals")
    publish(url, 0, KAFKA)
    publish(url, 0, KAFKA, query_id=OTHER, query_name=None, sink_name="public.others")


def test_queries_are_proposed_by_name_or_id(two, proposed):
    """By their names, or by their ids where those are typed, or there is no name."""
    assert proposed("offsets", "") == [OTHER, "orders"]
    assert proposed("history", "ord") == ["orders"]
    assert proposed("dead-letters", QUERY[:4]) == [QUERY]
    assert proposed("status", "or") == ["orders"]
    assert proposed("offsets", "nothing") == []


def test_sinks_are_proposed_of_the_query_on_the_line(two, proposed):
    """Those of the query that stands on the line; or all, if there is none yet."""
    assert sorted(proposed("offsets", "orders", "--sink", "")) == ["public.orders", "public.totals"]
    assert proposed("offsets", OTHER, "--sink", "pub") == ["public.others"]
    assert len(proposed("offsets", "--sink", "")) == 3


def test_codes_and_states_are_proposed_without_a_ledger(proposed):
    """Of the documents, without a ledger."""
    assert "TYPE_MISMATCH" in proposed("explain", "TYPE_")
    assert proposed("explain", "lagg") == ["lagging"]


def test_a_name_that_a_shell_would_obey_is_not_proposed(url, proposed):
    """It would come to stand on the command line as it is."""
    publish(url, 0, KAFKA, query_name="ord$(touch owned)")
    assert proposed("offsets", "ord") == []


@pytest.mark.parametrize("wrong", ["postgresql://127.0.0.1:1/none", "not a url", "postgresql:///?host=/nowhere"])
def test_without_an_answer_it_is_silent(proposed, monkeypatch, wrong):
    """No server, no connection string: nothing is proposed, and nothing is written."""
    monkeypatch.setenv("PGONCE_URL", wrong)
    assert proposed("offsets", "") == []


def test_a_server_that_does_not_answer_is_not_waited_for(tcp_url, proxy, proposed, monkeypatch):
    """A person who types waits two seconds at most."""
    monkeypatch.setenv("PGONCE_URL", proxy.url)
    with proxy.black_hole():
        started = time.monotonic()
        assert proposed("offsets", "") == []
        assert time.monotonic() - started < 10
