"""
Nothing grows with the number of batches: connections, descriptors, staging tables, the catalogue, the ledger.

Runs the short form of `make soak`, all ways in at once in one driver. What is asserted are counts, which do not depend
on how busy the machine is.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import dropwhile
from pathlib import Path
from statistics import median

import pytest
from support.fixtures.postgres import made_database
from support.fixtures.spark import spark_environment
from support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
_BATCHES = 40
_RETAINED = 100
_PRUNED_EVERY = 16


@pytest.fixture(scope="module")
def soaked(postgres_server, tmp_path_factory):
    """What a short run has measured, in a database of its own."""
    results = tmp_path_factory.mktemp("soak")
    path = [str(_BENCHMARKS), str(_BENCHMARKS.parent / "testbed"), *filter(None, [os.environ.get("PYTHONPATH")])]
    with made_database(postgres_server.url("postgres")) as name:
        options = {
            "--url": postgres_server.url(name),
            "--batches": str(_BATCHES),
            "--retain-batches": str(_RETAINED),
            "--every": "1",
            "--results": str(results),
        }
        words = [word for option in options.items() for word in option]
        done = subprocess.run(
            [sys.executable, str(_BENCHMARKS / "soak.py"), "--together", *words],
            capture_output=True,
            text=True,
            check=False,
            # Whether or not a test before it has started pytest's own driver, whose environment it would inherit.
            env={**os.environ, **spark_environment(), "PYTHONPATH": os.pathsep.join(path)},
            timeout=PATIENCE_SECONDS,
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return json.loads(next(results.glob("soak-*.json")).read_text())["soak"][0]


@pytest.fixture(scope="module")
def samples(soaked):
    """The looks at the driver after the first batches of every way, when workers and connections are there."""
    looks = dropwhile(lambda sample: sample["ledger"]["writers"] < len(soaked["times"]), soaked["samples"])
    settled = [sample for sample in looks if sample["batches"] > _BATCHES]
    assert len(settled) >= 6
    return settled


def first_and_last(samples, figure):
    """
    The median of a figure in the first third, and the least in the last one.

    What has leaked counts in every look. Some meet a process that Spark starts just then, with its parent's files.
    """
    third = len(samples) // 3
    return median(map(figure, samples[:third])), min(map(figure, samples[-third:]))


def test_all_batches_were_published(soaked):
    """Each way in published what it was to publish, and its first batch is not much quicker than its last."""
    for way, times in soaked["times"].items():
        assert len(times) == _BATCHES, way
        assert soaked["ratio"][way] < 4, way


def test_connections_do_not_grow(samples):
    """Each process that commits keeps a connection, and tasks that stage close theirs."""
    first, last = first_and_last(samples, lambda sample: sample["connections"])
    # Spark starts a second commit worker where two queries commit at once, and keeps it.
    assert last <= first + 2
    # Driver 2, commit workers 4, and for a moment tasks 2, their starts' looks at the ledger 2 and sweeps 2.
    assert max(sample["connections"] for sample in samples) <= 12


@pytest.mark.parametrize(("kind", "slack"), [("driver", 4), ("commit worker", 4), ("JVM", 60)])
def test_descriptors_do_not_grow(kind, slack, samples):
    """A process has as many files and sockets open after hundreds of batches as after a few, but for Spark's pools."""
    seen = [sample for sample in samples if kind in sample["processes"]]
    first, last = first_and_last(
        seen, lambda sample: sample["processes"][kind]["descriptors"] / sample["processes"][kind]["processes"]
    )
    assert last <= first + slack


def test_the_ledger_keeps_what_it_retains(samples):
    """A writer and a run for each way in, batches up to retention, and nothing else."""
    for sample in samples:
        ledger = sample["ledger"]
        assert ledger["writers"] == ledger["runs"] == 4
        assert ledger["batches"] <= 4 * (_RETAINED + _PRUNED_EVERY)
        assert ledger["replays"] == ledger["progress"] == 0
        assert ledger["staged_tables"] <= 2


def test_the_catalogue_is_as_before(soaked):
    """Staging and temporary tables are gone from the catalogue, row by row; VACUUM leaves none of the dead ones."""
    assert soaked["staging_left"] <= 1
    before, after = soaked["catalogue_before"], soaked["catalogue_after"]
    # What ANALYZE finds out about tables that have rows by now is no churn.
    for name in before.keys() - {"pg_statistic"}:
        assert after[name]["rows"] == before[name]["rows"], name
