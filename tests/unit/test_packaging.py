"""Is it the wheel that the tests import, and is all in it?"""

import importlib
import importlib.metadata
import sysconfig
from pathlib import Path

import pytest

MODULES = ["sink", "offsets_store", "pgonce", "pyspark_pgonce"]


def installed_at(module):
    """Where a module was imported from, seen from the directory of installed packages."""
    site_packages = Path(sysconfig.get_paths()["purelib"]).resolve()
    return Path(importlib.import_module(module).__file__).resolve().is_relative_to(site_packages)


@pytest.mark.parametrize("module", MODULES)
def test_driver_imports_the_wheel(module):
    """The tests' own process imports the installed package, not the source tree."""
    assert installed_at(module)


@pytest.mark.spark
def test_worker_imports_the_wheel(spark):
    """Spark's Python workers do so too, whatever directory they were started in."""

    # Nested functions travel by value: a worker cannot import this file.
    def locations(batches):
        import importlib

        import pyarrow as pa

        files = [importlib.import_module(module).__file__ for module in ["sink", "offsets_store"]]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": files})

    site_packages = Path(sysconfig.get_paths()["purelib"]).resolve()
    files = [Path(row.file) for row in spark.range(1).coalesce(1).mapInArrow(locations, "file string").collect()]
    assert len(files) == 2
    assert all(file.resolve().is_relative_to(site_packages) for file in files)


def test_wheel_is_typed():
    """Both packages tell type checkers that they carry types."""
    files = {str(file) for file in importlib.metadata.files("pgonce")}
    assert {"sink/py.typed", "offsets_store/py.typed"} <= files
