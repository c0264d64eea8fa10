"""
Start a driver in half the time: its JVM maps Spark's classes from an archive, and compiles less.

Runs in: any process that starts drivers for tests; the archive is made once, by a driver of its own
(:mod:`typical_job`). Invariant: a driver does the same with and without it; a JVM that cannot use the archive starts as
usual. ``PGONCE_TEST_CLASSES=off`` does without it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyspark
from maven import build_once, java

# Workers also use the driver's Python, and have no working directory on their path.
OF_THIS_PYTHON = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, "PYTHONSAFEPATH": "1"}
_JOB = Path(__file__).with_name("typical_job.py")
# The compiler's second tier and a collector with threads of its own pay off only in drivers that live longer. A driver
# of a few small queries took 32 s of CPU on two cores; with these options it takes 18, and with the archive 13.
_FOR_SHORT_LIVES = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
# Without this a JVM prints why it cannot use an archive, or which classes cannot go into one.
_QUIET = "-Xlog:cds*=off"


@cache
def driver_jvm_options() -> str:
    """
    Options for a driver's JVM, as ``SPARK_SUBMIT_OPTS`` takes them. The very first call takes half a minute.

    :raises MissingTool: if Java is missing.
    """
    if os.environ.get("PGONCE_TEST_CLASSES") == "off":
        return _FOR_SHORT_LIVES
    archive = _archive()
    return " ".join([_FOR_SHORT_LIVES, _QUIET, *([f"-XX:SharedArchiveFile={archive}"] if archive.exists() else [])])


def _archive() -> Path:
    program = java()
    version = subprocess.run([program, "-version"], capture_output=True, text=True, check=True).stderr
    jars = Path(os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)) / "jars"
    # A JVM refuses the archive of another JVM, and of jars that were elsewhere or have changed.
    of_jars = sorted((str(jar), jar.stat().st_mtime_ns) for jar in jars.glob("*.jar"))
    key = repr((version, of_jars, _FOR_SHORT_LIVES, _JOB.read_text())).encode()
    # This takes a driver's whole life: Maven's jars need not wait for it.
    return build_once("spark-classes", key, _fill, lock=".spark-classes.lock") / "spark.jsa"


def _fill(directory: Path) -> None:
    options = f"{_FOR_SHORT_LIVES} {_QUIET} -XX:ArchiveClassesAtExit={directory / 'spark.jsa'}"
    # Its session is always a classic one.
    classic = {name: value for name, value in os.environ.items() if name != "SPARK_CONNECT_MODE_ENABLED"}
    done = subprocess.run(
        [sys.executable, str(_JOB)],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env={**classic, **OF_THIS_PYTHON, "SPARK_SUBMIT_OPTS": options},
    )
    if done.returncode != 0:
        raise RuntimeError(f"The driver whose classes were to be kept failed: {done.stderr[-4000:]}")
