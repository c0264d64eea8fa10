"""How pgonce gets to executors, as docs/clusters.md describes it: in an archive of an environment, or as a zip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from standalone_cluster import StandaloneCluster
from support.clustered import HOSTS
from support.fixtures.skips import unavailable
from support.fixtures.spark import spark_settings

import pgonce

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ROWS = 200

JOB = """
import json, sys
from pyspark.sql import SparkSession

url, source, checkpoint, settings, registers = sys.argv[1:]
builder = SparkSession.builder.appName("packages")
for name, value in json.loads(settings).items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
if registers == "yes":
    from pyspark_pgonce import DefaultSource

    spark.dataSource.register(DefaultSource)
frame = spark.readStream.schema("id long, name string").json(source).repartition(4)
query = (
    frame.writeStream.format("pgonce")
    .options(url=url, table="events", createTable="true", inlineBytes="0", receiver="off")
    .option("checkpointLocation", checkpoint)
    .trigger(availableNow=True)
    .start()
)
try:
    query.awaitTermination()
except Exception:
    print("SAYS", str(query.exception()).splitlines()[0], flush=True)
spark.stop()
"""

# Each Python that runs a task on an executor notes which one it is, and where it has found the package.
NOTES = """
import os, pathlib, sys

def note():
    # Where a source was registered, Spark starts Pythons of the driver with the executors' environment, too.
    if "SPARK_LOCAL_IP" in os.environ:
        package = sys.modules["pgonce"].__spec__.origin
        pathlib.Path(os.environ["NOTES"], str(os.getpid())).write_text(f"{sys.executable} {package}")

class AtFirstImport:
    def find_spec(self, name, path=None, target=None):
        if name == "pgonce.sink.data_source.task_writer":
            sys.meta_path.remove(self)
            note()
sys.meta_path.insert(0, AtFirstImport())
"""


@pytest.fixture(scope="module")
def wheel():
    """The wheel of this version; `make setup` has built it."""
    (built,) = (ROOT / ".build/wheel").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """An environment with pgonce, and without Spark."""
    made = tmp_path_factory.mktemp("packages") / "made"
    run(sys.executable, "-m", "venv", str(made))
    run(str(made / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel))
    return made


@pytest.fixture(scope="module")
def archive(environment):
    """The same, packed."""
    packed = environment.parent / "environment.tar.gz"
    run(str(Path(sys.executable).parent / "venv-pack"), "-q", "-p", str(environment), "-o", str(packed))
    return packed


@pytest.fixture(scope="module")
def cluster():
    """A master and two workers."""
    with StandaloneCluster() as running:
        running.add_workers(*HOSTS)
        yield running


@pytest.fixture
def bare_cluster(tmp_path):
    """The same, but what is installed as pgonce cannot be seen there: each worker has mounts of its own."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        unavailable("Only root can hide a directory from a process, by unshare: run this as root.")
    (tmp_path / "nothing").mkdir()
    installed = Path(pgonce.__file__).parent
    hidden = [installed, *installed.parent.glob("pgonce-*.dist-info")]
    mounts = " && ".join(f"mount --bind '{tmp_path / 'nothing'}' '{path}'" for path in hidden)
    within = ("unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh")
    with StandaloneCluster() as running:
        running.add_workers(*HOSTS, within=dict.fromkeys(HOSTS, within))
        yield running


def run(*command):
    """Run a command that must not fail."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def job(tcp_url, start_driver, tmp_path):
    """Run the job; what it said, and which Pythons executors used, with the places of the package there."""

    def go(cluster, python, *, registers=False, **settings):
        source, notes, path = (tmp_path / name for name in ("source", "notes", "path"))
        for folder in (source, notes, path):
            folder.mkdir()
        (source / "1.json").write_text("".join(json.dumps({"id": n, "name": f"n{n}"}) + "\n" for n in range(ROWS)))
        (path / "sitecustomize.py").write_text(NOTES)
        (tmp_path / "job.py").write_text(JOB)
        all_settings = {
            **spark_settings(tmp_path, kafka=False),
            "spark.master": cluster.master,
            "spark.executor.memory": "640m",
            "spark.executorEnv.PYTHONPATH": str(path),
            "spark.executorEnv.NOTES": str(notes),
            **settings,
        }
        env = {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        arguments = (tcp_url, source, tmp_path / "checkpoint", json.dumps(all_settings), "yes" if registers else "no")
        driver = start_driver(tmp_path / "job.py", *arguments, env=env)
        assert driver.wait() == 0, driver.output()
        said = [line for line in driver.output().splitlines() if line.startswith("SAYS")]
        return said, {tuple(note.read_text().split(" ")) for note in notes.iterdir()}

    return go


def count(observer):
    """How many rows there are, and by which transport."""
    return observer.execute(
        "SELECT (SELECT count(*) FROM events), rows, transport FROM pgonce.batches WHERE rows > 0"
    ).fetchall()


def test_an_archive_of_an_environment(archive, cluster, job, observer, tmp_path):
    """spark.archives brings it to executors; the driver has it unpacked where it starts, under the same name."""
    (tmp_path / "environment").mkdir()
    shutil.unpack_archive(archive, tmp_path / "environment")
    said, seen = job(cluster, "./environment/bin/python", **{"spark.archives": f"{archive}#environment"})
    assert said == []
    assert count(observer) == [(ROWS, ROWS, "staged")]
    assert seen
    for _, package in seen:
        assert "/work/app-" in package, package
        assert "/environment/lib/" in package


def test_a_zip_where_all_else_is_installed(wheel, bare_cluster, job, observer, tmp_path):
    """The wheel is a zip: as one of --py-files it brings pgonce to executors whose Python has what it needs."""
    zipped = shutil.copy(wheel, tmp_path / "pgonce.zip")
    said, seen = job(bare_cluster, sys.executable, registers=True, **{"spark.submit.pyFiles": str(zipped)})
    assert said == []
    assert count(observer) == [(ROWS, ROWS, "staged")]
    assert seen
    for python, package in seen:
        assert python == sys.executable
        assert "pgonce.zip" in package


@pytest.mark.parametrize("has_zip", [True, False], ids=["a source that spark finds by itself", "nothing"])
def test_where_tasks_do_not_find_it(wheel, bare_cluster, job, tmp_path, has_zip):
    """They say what they lack, and where to read on; so they do with a zip, because Spark gives them no --py-files."""
    zipped = shutil.copy(wheel, tmp_path / "pgonce.zip")
    said, _ = job(bare_cluster, sys.executable, **({"spark.submit.pyFiles": str(zipped)} if has_zip else {}))
    assert "[NOT_ON_EXECUTORS]" in said[0]
    assert "`clusters`" in said[0]
