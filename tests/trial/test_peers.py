"""The trial of what people use: its table counts each run once, and a round of it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trial.peers.table import Outcome, cell, table, with_table

RIGHT = {"hit": True, "lost": 0, "doubled": 0, "other": 0}


def outcome(**how):
    """One that is as it should be, but for this."""
    return Outcome("p", "w", "f", 0, 0, **{**RIGHT, **how})


CELLS = {
    "right": ([{}, {}], "right 2 of 2"),
    "none hit": ([{"hit": False}], "not run"),
    "a miss beside a hit": ([{"hit": False, "lost": 9}, {}], "right 1 of 1"),
    "lost and doubled": ([{"lost": 2}, {"lost": 5000, "doubled": 1}], "**lost** 2 (2-5,000), **doubled** 1 (1) of 2"),
    "an older row": ([{"other": 3}, {}], "right 1, **older row** 1 (3) of 2"),
    "stopped, and what is still to come": ([{"lost": 7, "stopped": "GAP"}], "stopped 1 of 1"),
    "stopped with doubled rows": ([{"doubled": 7, "stopped": "GAP"}], "**doubled** 1 (7), stopped 1 of 1"),
}


@pytest.mark.parametrize("case", CELLS)
def test_a_cell_says_what_came_of_its_runs(case):
    """Rows that were doubled show where a run stopped, too."""
    runs, shown = CELLS[case]
    assert cell([outcome(**how) for how in runs]) == shown


def test_the_table_has_a_row_for_each_way_and_a_column_for_each_fault():
    """In its place on the page, where another one was."""
    text = table([outcome()], {"w": "A way"}, {"f": "a fault", "g": "another"})
    assert text.splitlines() == ["| | a fault | another |", "|---|---|---|", "| A way | right 1 of 1 | not run |"]
    page = with_table("before\n<!-- made by make trial -->\nold\n<!-- end -->\nafter", text)
    assert page.startswith("before\n<!-- made by make trial -->\n| | a fault")
    assert page.endswith("not run |\n<!-- end -->\nafter")


@pytest.mark.long
def test_a_round_finds_what_a_sink_without_positions_doubles(tmp_path):
    """Debezium's sink, killed between its commit in Postgres and its note of it: what it inserts comes twice."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join(str(root / folder) for folder in ("testbed", "tests", "benchmarks"))
    command = [sys.executable, str(root / "tests/trial/peers/run.py"), "--outcomes", str(tmp_path / "outcomes")]
    only = ["--family", "connect", "--fault", "kill_after_commit", "--lanes", "1", "--rounds", "1"]
    done = subprocess.run(
        [*command, *only], cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    found = [json.loads(line) for line in (tmp_path / "outcomes").read_text().splitlines()]
    doubled = {one["way"]: one["doubled"] > 0 for one in found if one["hit"]}
    assert doubled.pop("debezium_insert")
    assert not any(doubled.values())
    assert not any(one["lost"] or one["stopped"] for one in found)
