"""
Measure what grows with what: `make bench-scale`, or a part of it: `make bench-scale PART=tasks`.

Runs on the driver, with everything on this machine. Invariant: each part is a measurement of its own, whose file in
`results/` has every time; what docs/performance.md says was measured comes from such a file, and what it says was
computed comes from the part ``model``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kafka_broker import MissingTool
from rich.console import Console
from run import POSTGRES, RESULTS
from scale_columns import measure_columns
from scale_large_rows import measure_large_rows
from scale_model import main as show_model
from scale_offsets import measure_offsets
from scale_partitions import measure_partitions
from scale_rates import measure_rates
from scale_tasks import measure_tasks
from scale_writers import measure_writers
from screen import about_this_run, write_results

Part = Callable[[argparse.Namespace, Console], dict[str, Any]]

PARTS: dict[str, Part] = {
    "rates": lambda given, console: measure_rates(given.rows, given.rounds, console),
    "tasks": lambda given, console: measure_tasks(given.tasks, given.rounds, console),
    "partitions": lambda given, console: measure_partitions(given.partitions, given.rounds, console),
    "offsets": lambda given, console: measure_offsets(given.partitions, given.commits, console),
    "writers": lambda given, console: measure_writers(given.writers, given.seconds, given.rounds, console),
    "columns": lambda given, console: measure_columns(given.rounds, console),
    "rows": lambda given, console: measure_large_rows(given.megabytes, given.heap, console),
}


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-scale", description="What grows with what?")
    parser.add_argument("--part", choices=[*PARTS, "model"], action="append", help="the default: all of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=500_000, help="for rates")
    parser.add_argument("--tasks", type=int, nargs="+", default=[100, 1000, 4000])
    parser.add_argument("--partitions", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--commits", type=int, default=100, help="for offsets")
    parser.add_argument("--writers", type=int, nargs="+", default=[1, 10, 50, 200])
    parser.add_argument("--seconds", type=float, default=10, help="of each count of writers")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[10, 100, 250, 500, 900])
    parser.add_argument("--heap", default="4g", help="of the drivers that get large rows")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for the files with all times")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    for name in given.part or [*PARTS, "model"]:
        console.print(f"[bold]{name}[/]")
        if name == "model":
            show_model([])
            continue
        try:
            measured = PARTS[name](given, console)
        except MissingTool as missing:
            console.print(str(missing), style="red")
            return 2
        about = about_this_run(POSTGRES, "18")
        path = write_results(given.results, about, {name: measured}, prefix=f"scale-{name}-")
        console.print(f"All times are in {path}.\n", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
