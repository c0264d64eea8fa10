"""
What each Python process imports: Spark starts them by the dozen, and each one begins with its imports.

Covers: sink.encoding.compute, sink.writing.rooms.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from release.core_imports import CORE, room_of
from release.sizes import LIST, listed
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "support" / "imports_job.py"
# What Spark's worker imports by itself to hand Arrow to Python.
SPARKS = {"numpy", "py4j", "pyarrow", "pyspark"}
ENCODING = SPARKS | {"pgonce", "pgpq", "typing_extensions"}
PSYCOPG = {"psycopg", "psycopg-binary"}


def modules_after(code, env=None):
    """The modules of a new Python once it has run this."""
    code += "\nimport sys\nprint(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env and {**os.environ, **env}
    )
    return set(done.stdout.split())


AT_START = modules_after("")


def distributions(modules):
    """The installed packages that these modules come from, without those that any Python of this environment loads."""
    owners = packages_distributions()
    roots = {name.partition(".")[0] for name in set(modules) - AT_START}
    return {owner for root in roots for owner in owners.get(root, ())}


def test_importing_pgonce_imports_nothing_else():
    """The public names are imported when they are asked for."""
    loaded = modules_after("import pgonce") - AT_START
    assert distributions(loaded) == {"pgonce"}
    assert {name for name in loaded if name.startswith("pgonce")} == {"pgonce"}


def test_looking_for_data_sources_imports_no_more_than_spark_has():
    """Spark imports this module in every session that uses any Python data source."""
    spark = modules_after("import pyspark.sql.datasource")
    loaded = modules_after("import pyspark.sql.datasource, pyspark_pgonce") - spark
    assert distributions(loaded) <= {"pgonce", "pyspark", "typing_extensions"}


SIZES = listed(LIST.read_text())
ITS_OWN = {CORE, "package", None}


def rooms_in(modules):
    """The rooms around the core, of which these modules are a part."""
    ours = (module for module in modules if module.startswith("pgonce."))
    return {room_of(module, SIZES["rooms"]) for module in ours} - ITS_OWN


def test_a_writer_needs_no_room():
    """Who writes with foreachBatch loads nothing of what stands around the core."""
    loaded = modules_after("from pgonce import PostgresBatchWriter\nPostgresBatchWriter(url='', table='t')")
    assert "pgonce.sink.foreach_batch.batch_writer" in loaded
    assert rooms_in(loaded) == set()


ONE_ROW = """
from pyspark.sql import types as t
from support.typed_rows import commit_typed
from pgonce.sink.options.destination import destination
commit_typed({!r}, 0, destination("events", **{!r}), {{"id": t.LongType()}}, [(1,)])
"""
ROUTED = """
from support.batches import make_planned_batch
from support.routed_rows import commit, routed, routes
commit({!r}, make_planned_batch(0), routes({!r}), routed(("e", 1, None)))
"""

# A bad row may be one of a batch by key.
BAD_ROWS = {"bad rows", "changes by key"}


@pytest.mark.parametrize(
    ("code", "how", "rooms"),
    [
        (ONE_ROW, {}, set()),
        pytest.param(ONE_ROW, {"schema_evolution": "addColumns"}, {"new columns"}, marks=pytest.mark.thorough),
        pytest.param(ONE_ROW, {"mode": "upsert", "keys": "id"}, {"changes by key"}, marks=pytest.mark.thorough),
        pytest.param(ONE_ROW, {"dead_letters": True}, BAD_ROWS, marks=pytest.mark.thorough),
        (ROUTED, {"e": {"table": "events", "schema_evolution": "ignoreExtra"}}, {"routes", "new columns", *BAD_ROWS}),
    ],
)
def test_a_commit_loads_the_rooms_that_an_option_asks_for(code, how, rooms, admin, url):
    """One that appends loads none; tables among which rows choose may get columns, and rows of none be put aside."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY)")
    assert rooms_in(modules_after(code.format(url, how), env=with_tests_on_path())) == rooms


@pytest.mark.slow
def test_a_process_imports_what_it_runs(start_driver, admin, url, tmp_path):
    """
    A task that only encodes has nothing of Postgres, one that stages has psycopg, and only the commit has SQLAlchemy.

    None of them imports pandas. (In a task, Spark itself does afterwards.)
    """
    admin.execute("CREATE TABLE events (id bigint)")
    told = {
        "url": url,
        "directory": str(tmp_path),
        "settings": spark_settings(tmp_path, kafka=False),
        "variants": {"inline": {}, "staged": {"inlineBytes": "0", "receiver": "off"}},
    }
    driver = start_driver(JOB, json.dumps(told), env=with_tests_on_path())
    assert driver.wait() == 0, driver.output()
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (2,)
    assert noted(tmp_path / "inline") == {
        "planner": ENCODING | PSYCOPG,
        "task": ENCODING,
        "commit": ENCODING | PSYCOPG | {"SQLAlchemy"},
    }
    for way in ("inline", "staged"):
        loaded = {file.name: rooms_in(file.read_text().split()) for file in (tmp_path / way).iterdir()}
        # The planner offers a receiver, and the commit asks whether it has rows; a task calls it if it has many.
        assert loaded["task"] == set()
        assert loaded["planner"] | loaded["commit"] <= {"receiver"}
    # Only a process that reads rows needs it.
    for process in ("planner", "commit"):
        assert "pyarrow.compute" not in (tmp_path / "inline" / process).read_text().split()
    # By the same worker, which has been Spark's since.
    assert noted(tmp_path / "staged")["task"] >= ENCODING | PSYCOPG
    assert "SQLAlchemy" not in noted(tmp_path / "staged")["task"]


def noted(folder):
    """The packages from which each process of a query had imported modules."""
    return {file.name: distributions(file.read_text().split()) for file in folder.iterdir()}
