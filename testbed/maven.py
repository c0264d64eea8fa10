"""
Fetch jars from Maven.

Runs on a developer's or build machine, before anything else starts. Invariant: `.build/` holds only complete
sets of jars; a set is named by the hash of what was asked for, filled in another directory and then renamed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / ".build"
_MINIMUM_JAVA = 17


class MissingTool(Exception):
    """A program that this machine lacks; the text is one sentence that says what to install."""


def java() -> str:
    """Path of Java 17 or newer: the one in JAVA_HOME, as for Spark, or else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if path is None or not Path(path).exists():
        raise MissingTool(f"Java {_MINIMUM_JAVA} or newer is missing: install a JDK (openjdk-17) or set JAVA_HOME.")
    # "17.0.15", "21", or "1.8.0_402" for old versions; printed on stderr.
    version = subprocess.run([path, "-version"], capture_output=True, text=True, check=False).stderr
    number = re.search(r'version "(\d+)', version)
    if number is None or int(number[1]) < _MINIMUM_JAVA:
        raise MissingTool(f"Java {_MINIMUM_JAVA} or newer is needed, and {path} is older: install openjdk-17.")
    return path


def jars_of_pom(pom: Path) -> list[Path]:
    """
    Fetch the runtime dependencies of a POM once, and return their paths.

    :raises MissingTool: if Maven or Java is missing, or Maven could not fetch them.
    """
    goal = ["-f", str(pom), "dependency:copy-dependencies", "-DincludeScope=runtime"]
    return sorted(_fetched(pom.parent.name, pom.read_bytes(), goal).glob("*.jar"))


def jar_of_artifact(artifact: str) -> Path:
    """Fetch the one jar of an artifact named ``group:artifact:version``, and return its path."""
    goal = ["dependency:copy", f"-Dartifact={artifact}"]
    return next(_fetched(artifact.split(":")[1], artifact.encode(), goal).glob("*.jar"))


def unpacked_artifact(artifact: str) -> Path:
    """Fetch an archive named ``group:artifact:version:type:classifier``, and return a folder with what is in it."""
    return _fetched(artifact.split(":")[1], artifact.encode(), ["dependency:unpack", f"-Dartifact={artifact}"])


def build_once(name: str, key: bytes, fill: Callable[[Path], None], lock: str = ".lock") -> Path:
    """
    Return `.build/name-HASH`, filled by `fill` now or earlier; two processes never both fill it.

    :param lock: those with the same one are filled one after the other, as Maven needs it.
    """
    place = BUILD / f"{name}-{hashlib.sha256(key).hexdigest()[:10]}"
    if place.exists():
        return place
    BUILD.mkdir(exist_ok=True)
    with (BUILD / lock).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=BUILD, prefix=".filling-") as beside:
                filled = Path(beside) / "set"
                filled.mkdir()
                fill(filled)
                filled.rename(place)
    return place


def _fetched(name: str, key: bytes, goal: list[str]) -> Path:
    def fetch(directory: Path) -> None:
        java()
        maven = shutil.which("mvn")
        if maven is None:
            raise MissingTool(
                "Maven is missing: install maven, which fetches the jars of Kafka, of connectors and of other sinks."
            )
        command = [maven, "-q", "-B", *goal, f"-DoutputDirectory={directory}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
        if done.returncode != 0:
            said = next((line for line in done.stdout.splitlines() if "ERROR" in line), "it said nothing")
            raise MissingTool(f"Maven could not fetch the jars of {name}: {said}")

    return build_once(name, key, fetch)
