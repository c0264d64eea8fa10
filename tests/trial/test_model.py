"""
The model of the commit has no bad history, has one without each guard, and its histories are those of the real commit.

Runs in: pytest, and with wider bounds by `make model`. It needs Debian's package spin.
"""

from __future__ import annotations

from functools import partial

import pytest
from support.ledger_site import site_at
from trial.model import FORMAT, GOES_ON, SMALL, WITHOUT, run
from trial.played_history import PlayedHistory, tries_that_stop
from trial.played_positions import PlayedPositions
from trial.played_real_time import PlayedRealTime
from trial.spin import play

PLAYED = ("PLAYED", "STARTS=7", "FAULTS=4", "BATCHES=7", "RECORDS=12")
HISTORIES = 20
IN_TESTS = [*GOES_ON, *(pytest.param(one, marks=pytest.mark.thorough) for one in SMALL)]


@pytest.mark.parametrize("searched", IN_TESTS, ids=lambda one: one.title)
def test_no_order_of_events_loses_a_row_or_doubles_one(searched):
    """Two runs and one fault, by each way in; and without faults a query goes on."""
    assert run(searched).steps == ()


@pytest.mark.thorough
@pytest.mark.parametrize("searched", WITHOUT, ids=lambda one: one.title)
def test_each_guard_is_needed(searched):
    """Without it, a row is lost or doubled, or a query stands still."""
    assert run(searched).steps


@pytest.fixture
def site(url, proxy):
    """A database with a ledger and a table, and a line to it that can be cut; every try stops before the next one."""
    with site_at(url, proxy) as found, tries_that_stop():
        yield found


@pytest.mark.parametrize(
    ("model", "way", "history", "expected"),
    [
        ("batches", "foreachBatch", PlayedHistory, {"GAP"}),
        ("batches", "format", PlayedHistory, {"GAP"}),
        pytest.param("by_position", "foreachBatch", PlayedPositions, {"OVERLAP"}, marks=pytest.mark.thorough),
    ],
)
def test_the_real_commit_does_what_the_model_says(site, model, way, history, expected, tmp_path):
    """Histories that Spin plays by chance, line by line: each verdict and each row is the model's."""
    defines = (*PLAYED, *([FORMAT] if way == "format" else []))
    lines = all_played(site, partial(history, site, asks_the_query=way != "format"), model, defines, tmp_path)
    verdicts = {line.split()[-1] for line in lines if line.startswith("begin")}
    assert verdicts >= {"NEW", "REPLAY", "LANDED", "UNKNOWN", *expected}


@pytest.mark.thorough
def test_the_statements_of_real_time_do_what_the_model_says(url, proxy, tmp_path):
    """Histories of the tasks of a partition, played with their statements."""
    defines = ("PLAYED", "RUNS=4", "ATTEMPTS=12", "FAULTS=4", "RECORDS=12")
    with site_at(url, proxy, "orders", "id bigint, name text") as site:
        lines = all_played(site, partial(PlayedRealTime, site), "real_time", defines, tmp_path, 2 * HISTORIES)
    assert {line.split()[0] for line in lines} >= {"flush", "unwritten", "unclaimed", "report", "fail"}


def all_played(site, history, model, defines, folder, histories=HISTORIES):
    """The lines of some histories, which were played."""
    found = []
    for seed in range(1, histories + 1):
        site.reset()
        played, lines = history(), play(model, defines, seed, folder)
        for number, line in enumerate(lines):
            try:
                played.play(line)
            except BaseException as error:
                error.add_note(f"seed {seed}: " + "; ".join(lines[: number + 1]))
                raise
        played.close()
        found += lines
    return found
