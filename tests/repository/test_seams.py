"""
Two features can be left out by deleting what they are made of: the receiver, and commits that begin early.

Each is named in one other module, by one import and where it is used. The tests make a copy of the product without it,
as a person would, and look at what is left.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("offsets_store", "sink")


@dataclass(frozen=True)
class Seam:
    """
    A feature, and how it is left out.

    :param made_of: the folder or the module to delete, in the folder of the package.
    :param named_in: the one module that names it.
    :param instead: a line of that module, or a part of one, to what takes its place.
    """

    made_of: str
    named_in: str
    instead: Mapping[str, str]

    @property
    def module(self) -> str:
        """Its dotted name."""
        return ".".join(("pgonce", *Path(self.made_of).with_suffix("").parts))


RECEIVER = Seam(
    "sink/data_source/receiver",
    "sink/data_source/spark_interface.py",
    {
        "from pgonce.sink.data_source.receiver.launch import receiver_for\n": "",
        "receiver_for(options, written)": "None",
    },
)
EARLY_COMMITS = Seam(
    "sink/foreach_batch/early_commit.py",
    "sink/foreach_batch/batch_writer.py",
    {
        "from pgonce.sink.foreach_batch.early_commit import EarlyCommits\n": "",
        "EarlyCommits(": "FrameCommits(",
    },
)

IMPORT_ALL = """
import importlib, pkgutil, sys
import pgonce
assert pgonce.__file__.startswith(sys.argv[1]), pgonce.__file__
for module in pkgutil.walk_packages(pgonce.__path__, "pgonce."):
    if module.name != "pgonce.__main__":
        importlib.import_module(module.name)
"""


def without(seam: Seam, folder: Path) -> Path:
    """A copy of the product that lacks the feature."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / "pgonce" / package, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (ROOT / "pgonce").glob("*.py"):
        shutil.copy(file, folder / "pgonce")
    shutil.copy(ROOT / "pyspark_pgonce.py", folder)
    gone = folder / "pgonce" / seam.made_of
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink()
    named = folder / "pgonce" / seam.named_in
    text = named.read_text()
    for line, instead in seam.instead.items():
        assert text.count(line) == 1, line
        text = text.replace(line, instead)
    named.write_text(text)
    return folder


def run(code: str, folder: Path, *arguments: str) -> str:
    """What a new Python says that finds the copy first."""
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder), *arguments],
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("seam", [RECEIVER, EARLY_COMMITS], ids=["receiver", "early commits"])
class TestLeftOut:
    def test_one_module_names_it(self, seam):
        """Its import stands in one line of the product."""
        parts = seam.module.rpartition(".")
        importing = re.compile(rf"{re.escape(seam.module)}\b|from {re.escape(parts[0])} import .*\b{parts[2]}\b")
        made_of = ROOT / seam.made_of
        found = [
            str(path.relative_to(ROOT))
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
            if path != made_of and made_of not in path.parents
            for line in path.read_text().splitlines()
            if importing.search(line)
        ]
        assert found == [seam.named_in]

    def test_what_is_left_can_be_imported(self, seam, tmp_path):
        """Every other module of the product."""
        run(IMPORT_ALL, without(seam, tmp_path))

    def test_what_is_left_has_the_right_types(self, seam, tmp_path):
        """Nothing else uses what is gone."""
        folder = without(seam, tmp_path)
        shutil.copy(ROOT / "pyproject.toml", folder)
        # A cache for each, because both may be checked at the same time.
        cache = ROOT / ".mypy_cache" / f"without {seam.module}"
        command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache)]
        checked = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        assert checked.returncode == 0, checked.stdout


WRITE_ROWS = """
import sys
from pyspark.sql import SparkSession
import pgonce
from pgonce import PostgresBatchWriter
folder, url, way = sys.argv[1:]
assert pgonce.__file__.startswith(folder)
with SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate() as spark:
    for count in (3, 4):
        spark.range(count).write.mode("append").json(f"{folder}/source")
    rows = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(f"{folder}/source")
    writer = rows.writeStream.option("checkpointLocation", f"{folder}/checkpoint").trigger(availableNow=True)
    if way == "source":
        options = {"url": url, "table": "events", "createTable": "true", "inlineBytes": "0"}
        query = writer.format("pgonce").options(**options).start()
    else:
        query = writer.foreachBatch(PostgresBatchWriter(url, table="events", create_table=True)).start()
    query.awaitTermination()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("seam", "way"), [(RECEIVER, "source"), (EARLY_COMMITS, "function")])
def test_a_query_runs_without_it(seam, way, url, observer, tmp_path):
    """Large partitions are staged, and a batch's transaction begins when its rows are there."""
    run(WRITE_ROWS, without(seam, tmp_path), url, way)
    assert observer.execute("SELECT id FROM events ORDER BY id").fetchall() == [
        (n,) for n in sorted([*range(3), *range(4)])
    ]
    assert observer.execute("SELECT DISTINCT transport FROM pgonce.batches WHERE rows > 0").fetchall() == [
        ("staged" if way == "source" else "arrow",)
    ]
