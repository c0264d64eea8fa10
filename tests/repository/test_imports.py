"""
What each Python process imports: Spark starts them by the dozen, and each one begins with its imports.

Covers: sink.encoding.compute, sink.writing.rooms.
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from support.fixtures.driver import with_tests_on_path
from support.fixtures.spark import spark_settings

ROOT = Path(__file__).parents[2]
JOB = ROOT / "tests" / "support" / "imports_job.py"
# What Spark's worker imports by itself to hand Arrow to Python.
SPARKS = {"numpy", "py4j", "pyarrow", "pyspark"}
ENCODING = SPARKS | {"pgonce", "pgpq", "typing_extensions"}
PSYCOPG = {"psycopg", "psycopg-binary"}


def modules_after(code):
    """The modules of a new Python once it has run this."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"], capture_output=True, text=True, check=True
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


ROOMS = {
    f"pgonce.{file.parent.name}" for file in (ROOT / "pgonce").glob("*/__init__.py") if not file.parent.is_symlink()
}


def rooms_in(modules):
    """The rooms for people and operation, of which these modules are a part."""
    return {room for room in ROOMS for module in modules if module == room or module.startswith(f"{room}.")}


def test_a_writer_needs_no_room():
    """Who writes with foreachBatch loads nothing of the rooms around sink and offsets_store."""
    assert len(ROOMS) >= 6
    loaded = modules_after("from pgonce import PostgresBatchWriter\nPostgresBatchWriter(url='', table='t')")
    assert "pgonce.sink.foreach_batch.batch_writer" in loaded
    assert rooms_in(loaded) == set()


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
        for process in (tmp_path / way).iterdir():
            assert rooms_in(process.read_text().split()) == set()
    # Only a process that reads rows needs it.
    for process in ("planner", "commit"):
        assert "pyarrow.compute" not in (tmp_path / "inline" / process).read_text().split()
    # By the same worker, which has been Spark's since.
    assert noted(tmp_path / "staged")["task"] >= ENCODING | PSYCOPG
    assert "SQLAlchemy" not in noted(tmp_path / "staged")["task"]


def noted(folder):
    """The packages from which each process of a query had imported modules."""
    return {file.name: distributions(file.read_text().split()) for file in folder.iterdir()}
