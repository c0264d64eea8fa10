"""
What a run prints, and what it leaves in a file.

Runs on the driver. Invariant: the file holds every time that was measured; all that is printed follows from it.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from loads import Load
from report import Outcome, Rounds, figures, ratios
from rich import box
from rich.console import Console
from rich.table import Table

_PACKAGES = ("pyspark", "pyarrow", "pgpq", "psycopg", "sqlalchemy")


def show_load(console: Console, load: Load, times: Mapping[str, Rounds], baselines: Sequence[str]) -> None:
    """A table of one load: a row for each contender, a column for the ratio to each baseline."""
    each = f"{load.rounds} rounds of {load.measured} batches after {load.warm_up} of warm-up"
    table = Table(box=box.SIMPLE_HEAD, title=f"Batches of {load.name}: {each}", title_justify="left")
    table.add_column("sink")
    for name in ("median ms", "p10", "p90", "rows/s", *(f"x {name}" for name in baselines)):
        table.add_column(name, justify="right")
    for name, rounds in times.items():
        f = figures(rounds)
        against = (f"{median(ratios(rounds, times[baseline])):.2f}" for baseline in baselines)
        speed = f"{load.rows / f.median * 1000:,.0f}"
        table.add_row(name, f"{f.median:,.0f}", f"{f.p10:,.0f}", f"{f.p90:,.0f}", speed, *against)
    console.print(table)


def show_memory(console: Console, load: Load, way_in: str, peaks: Mapping[str, int]) -> None:
    """The driver-side Python processes at their peak, in bytes."""
    kinds = ", ".join(f"{kind} {size / 1e6:,.0f} MB" for kind, size in peaks.items() if size)
    console.print(f"{way_in}, batches of {load.name}, peak memory (workers with daemons): {kinds}.\n", soft_wrap=True)


def show_cpu(console: Console, load: Load, used: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """A table of one load: the CPU seconds of each contender, and those of Postgres."""
    table = Table(box=box.SIMPLE_HEAD, title="CPU seconds a million rows, medians of the rounds", title_justify="left")
    table.add_column("sink")
    for name in ("its own processes", "Postgres", "both"):
        table.add_column(name, justify="right")
    millions = load.measured * load.rows / 1_000_000
    for name, rounds in used.items():
        kinds: tuple[Callable[[tuple[float, float]], float], ...] = (itemgetter(0), itemgetter(1), sum)
        table.add_row(name, *(f"{median(map(kind, rounds)) / millions:.2f}" for kind in kinds))
    console.print(table)


def show_wal(console: Console, used: Mapping[str, Sequence[float]]) -> None:
    """The bytes of WAL a row, of those that write rows."""
    each = (f"{name} {median(rounds):,.0f}" for name, rounds in used.items() if any(rounds))
    console.print(f"Bytes of WAL a row, medians of the rounds: {', '.join(each)}.\n", soft_wrap=True)


def show_goals(console: Console, outcomes: Sequence[Outcome], *, judged: bool) -> None:
    """Which goals were reached; a small run is too short to say."""
    table = Table(box=box.SIMPLE_HEAD, title="Goals", title_justify="left")
    for name in ("goal", "measured", "reached"):
        table.add_column(name)
    for outcome in outcomes:
        answer = ("[green]yes[/]" if outcome.met else "[red]no[/]") if judged else "too short to say"
        table.add_row(outcome.goal, outcome.measured, answer)
    console.print(table)


def about_this_run(postgres_settings: Mapping[str, str], server_version: str) -> dict[str, Any]:
    """Where the figures come from."""
    return {
        "commit": _commit(),
        "at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "postgres": server_version,
        "postgres_settings": dict(postgres_settings),
        **{package: version(package) for package in _PACKAGES},
    }


def write_results(directory: Path, about: Mapping[str, Any], measured: Mapping[str, Any], prefix: str = "") -> Path:
    """Write everything as JSON, whole or not at all; the file's name has what was measured, the time and the commit."""
    directory.mkdir(exist_ok=True)
    stamp = about["at"].replace(":", "").replace("-", "")[:13]
    path = directory / f"{prefix}{stamp}-{about['commit'][:12]}.json"
    beside = path.with_suffix(".tmp")
    beside.write_text(json.dumps({"about": about, **measured}, indent=1) + "\n")
    return beside.rename(path)


def load_as_json(load: Load, times: Mapping[str, Rounds]) -> dict[str, Any]:
    """One load's times in ms, by contender and round, with a description of the load."""
    return {**asdict(load), "trigger_ms": {name: [list(r) for r in rounds] for name, rounds in times.items()}}


def _commit() -> str:
    here = Path(__file__).parent
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True,
        text=True,
        check=False,
        cwd=here,
    )
    return described.stdout.strip() or "unknown"
