"""``pgonce errors``: what went wrong, in few lines."""

from __future__ import annotations

import json

import pytest
from support.ledger_history import QUERY, RUN

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.ledger.failures import Failed, keep_failure
from pgonce.offsets_store.ledger.migrations import ensure_ledger


@pytest.fixture
def failed(url):
    """Two failures, of two queries."""
    ensure_ledger(url)
    first = Failed(seen_by="commit", query_id=QUERY, query_name="orders", run_id=RUN, batch_id=12)
    for _ in range(3):
        keep_failure(url, first, "LOCKED", "Batch 12 waited 30 s for a lock that other sessions hold.", "public.orders")
    keep_failure(url, Failed(seen_by="planner", query_id="q2", query_name="clicks"), "COLUMN_UNKNOWN", "No column x.")


def test_each_error_has_two_lines_and_the_newest_comes_first(pgonce, failed):
    """The newest first: when, the code, where and how often, and the sentence; then what explains the codes."""
    lines = [line.rstrip() for line in pgonce("errors").output.splitlines()]
    assert lines[0].split(maxsplit=2)[2] == "COLUMN_UNKNOWN: clicks"
    assert lines[1].strip() == "No column x."
    assert lines[2].split(maxsplit=2)[2] == "LOCKED: orders, batch 12, 3 times, sink public.orders"
    assert lines[3].strip() == "Batch 12 waited 30 s for a lock that other sessions hold."
    assert lines[4:] == ["", "Next: pgonce explain COLUMN_UNKNOWN", "Next: pgonce explain LOCKED"]
    assert all(len(line) <= 80 for line in lines)


@pytest.mark.parametrize("command", [("errors",), ("status",), ("status", "clicks"), ("health",)])
def test_what_to_do_is_what_the_error_told(pgonce, url, command):
    """Who does not have the driver's log reads the same advice everywhere."""
    ensure_ledger(url)
    failed = Failed(seen_by="planner", query_id="q2", query_name="clicks")
    keep_failure(url, failed, "TARGET_NOT_PERMITTED", "No.", remedy="GRANT INSERT ON orders TO app.")
    assert "Help: GRANT INSERT ON orders TO app." in pgonce(*command).output


def test_errors_are_chosen_by_query_and_by_time(pgonce, failed, admin):
    """By query, and by time."""
    assert "LOCKED" not in pgonce("errors", "--query", "clicks").output
    admin.execute("UPDATE pgonce.failures SET last_at = last_at - interval '4 hours' WHERE code = 'LOCKED'")
    assert "LOCKED" not in pgonce("errors", "--since", "3h").output
    assert "4h ago" in pgonce("errors").output


def test_each_failure_is_one_object_with_stable_keys(pgonce, failed):
    """One object a failure, with stable keys."""
    clicks, orders = json.loads(pgonce("errors", "--json").output)
    assert clicks["seen_by"] == "planner"
    assert (orders["code"], orders["attempts"], orders["batch_id"], orders["run_id"]) == ("LOCKED", 3, 12, RUN)


def test_without_any_failure_the_command_says_so(pgonce, url):
    """If nothing is known, that is said."""
    ensure_ledger(url)
    assert "No failure since 3h is in the ledger. " in pgonce("errors", "--since", "3h").output


@pytest.mark.parametrize("since", ["soon", "2026-11-26", "999999999d"])
def test_a_time_that_cannot_be_read(pgonce, url, since):
    """It is a usage error: a word, a date, and a span that is longer than there are dates."""
    result = pgonce("errors", "--since", since)
    assert result.exit_code == ExitCode.USAGE
    assert "BAD_OPTION" in result.stderr


def test_an_error_that_is_not_ours(pgonce, url):
    """The driver's log is what has more of it."""
    ensure_ledger(url)
    keep_failure(url, Failed(seen_by="listener", query_id=QUERY, run_id=RUN), "java.lang.OutOfMemoryError", "It ended.")
    assert "Next: read the driver's log" in pgonce("errors").output
