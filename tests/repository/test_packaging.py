"""The tests import the wheel, it is complete, and the same bytes come of it wherever it is built."""

import ast
import importlib
import importlib.metadata
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from matrix.combinations import PYTHONS
from support.distributions import build

import pgonce

ROOT = Path(__file__).parents[2]
MODULES = ["pgonce", "pgonce.sink", "pgonce.offsets_store", "pyspark_pgonce"]


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

        files = [importlib.import_module(module).__file__ for module in ["pgonce.sink", "pgonce.offsets_store"]]
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"file": files})

    site_packages = Path(sysconfig.get_paths()["purelib"]).resolve()
    files = [Path(row.file) for row in spark.range(1).coalesce(1).mapInArrow(locations, "file string").collect()]
    assert len(files) == 2
    assert all(file.resolve().is_relative_to(site_packages) for file in files)


def test_the_wheel_tells_type_checkers_that_it_carries_types():
    """The package tells type checkers that it carries types."""
    files = {str(file) for file in importlib.metadata.files("pgonce")}
    assert "pgonce/py.typed" in files


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive and the wheel of this repository."""
    folder = tmp_path_factory.mktemp("built")
    return build("sdist", ROOT, folder / "sdist"), build("wheel", ROOT, folder / "wheel")


def test_source_archive_and_wheel_hold_the_same_files(built, tmp_path):
    """A wheel that is built from the source archive is that which is built from the repository."""
    archive, direct = built
    with tarfile.open(archive) as sources:
        sources.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.glob("pgonce-*")
    indirect = build("wheel", unpacked, tmp_path / "indirect")
    assert contents(indirect) == contents(direct)
    top = {Path(name).parts[0] for name in contents(direct)}
    # What is in .data goes to share/man.
    assert {name for name in top if not name.endswith((".dist-info", ".data"))} == {"pgonce", "pyspark_pgonce.py"}


def test_the_times_in_it_can_be_those_of_the_commit(tmp_path, monkeypatch):
    """With SOURCE_DATE_EPOCH, each file in the wheel has that time."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1790000000")
    with zipfile.ZipFile(build("wheel", ROOT, tmp_path / "wheel")) as files:
        assert {entry.date_time for entry in files.infolist()} == {(2026, 9, 21, 14, 13, 20)}


def test_what_an_index_shows_can_be_trusted():
    """The repository's address is the same everywhere, and each Python that the matrix runs is named."""
    about = importlib.metadata.metadata("pgonce")
    addresses = dict(line.split(", ", 1) for line in about.get_all("Project-URL"))
    repository = addresses["Repository"]
    assert all(address.startswith(repository) for address in addresses.values())
    assert f"repository-code: {repository}\n" in (ROOT / "CITATION.cff").read_text()
    named = {each.rpartition(" :: ")[2] for each in about.get_all("Classifier") if re.search(r"Python :: 3\.\d", each)}
    assert named == {python for pythons in PYTHONS.values() for python in pythons}
    assert about["License-Expression"] == "Apache-2.0"
    assert not any(each.startswith("License ::") for each in about.get_all("Classifier"))


def test_links_of_the_readme_lead_somewhere_on_an_index():
    """They are absolute, to the files as the version has them; headings of the page itself stay."""
    about = importlib.metadata.metadata("pgonce")
    links = re.findall(r"\]\(([^)\s]+)\)", about.get_payload() or about["Description"])
    repository = next(line.split(", ")[1] for line in about.get_all("Project-URL") if line.startswith("Repository"))
    assert f"{repository}/blob/v{about['Version']}/docs/databases.md" in links
    assert f"{repository}/raw/v{about['Version']}/docs/serve.png" in links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []


def test_one_module_encodes_with_pgpq():
    """ADR 47 counts on that: another encoder would be one other module."""
    sources = [path for folder in ("sink", "offsets_store", "pgonce") for path in (ROOT / folder).rglob("*.py")]
    users = {str(path.relative_to(ROOT)) for path in sources if "pgpq" in imported_by(path)}
    assert users == {"sink/encoding/copy_encoder.py"}


def imported_by(path):
    """The packages from which a module imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {name.partition(".")[0] for name in names}


def contents(wheel):
    """The files in a wheel, with what is in them."""
    with zipfile.ZipFile(wheel) as files:
        return {name: files.read(name) for name in files.namelist()}


PROGRAM = """
from pyspark.sql import DataFrame
from pgonce import BatchTransaction, OffsetsStore, PostgresBatchWriter, transactional_batch

writer = PostgresBatchWriter("host=db", table="events", mode="upsert", keys=["id"])


@transactional_batch("host=db", name="orders")
def write_orders(batch: DataFrame, tx: BatchTransaction) -> None:
    reveal_type(tx.append(batch, "orders"))


reveal_type(write_orders)
PostgresBatchWriter("host=db", tabel="events")
"""


def test_a_users_program_is_type_checked_against_the_wheel(tmp_path):
    """Mypy knows the public names, and finds an argument that is misspelt."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", "--config-file=", program.name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r'Revealed type is "(builtins\.)?int"', done.stdout), done.stdout
    assert 'Revealed type is "def (pyspark.sql' in done.stdout
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 1, done.stdout
    assert "tabel" in errors[0]


def test_what_public_methods_return_can_be_named():
    """Each class of ours in what a public method or function returns can be imported for an annotation."""
    returned = ""
    for name in pgonce.__all__:
        public = getattr(pgonce, name)
        methods = [method for key, method in vars(public).items() if not key.startswith("_")]
        called = methods if isinstance(public, type) else [public]
        called = [each.fget if isinstance(each, property) else each for each in called]
        returned += " ".join(str(getattr(each, "__annotations__", {}).get("return")) for each in called) + " "
    ours = {"StoredWriter", "StoredBatch", "StoredLetter", "PartitionLag", "CurrentOffset", "Recovery"}
    named = set(re.findall(r"\w+", returned.replace("Status", "StoredWriter PartitionLag")))
    assert ours <= named
    foreign = {"Any", "BatchFunction", "Callable", "Connection", "CursorResult", "DataFrame", "None", "Offsets", "Self"}
    assert {each for each in named if each[:1].isupper()} - foreign - {"StreamingQuery"} <= set(pgonce.__all__)


def test_every_public_name_is_there():
    """Each name is found when it is asked for, and no other."""
    assert all(getattr(pgonce, name).__name__ == name for name in pgonce.__all__)
    assert set(pgonce.__all__) <= set(dir(pgonce))
    with pytest.raises(AttributeError, match="has no attribute"):
        pgonce.Postgres  # noqa: B018
