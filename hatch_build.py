"""
Compile the writer for Spark's real-time and continuous modes, and pack it into the wheel and the sdist. Also make the
README's links absolute, because a package index shows the README without the repository.

Runs in hatchling, when either is built. It needs the JDK's compiler alone: the few classes of Spark that the writer
touches are declared in `compile_only`, and not packed. Invariant: the same sources and compiler give the same jar.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

JAR = "pgonce/real_time/pgonce-real-time.jar"
# Spark 3.5 runs on Java 11 too.
_RELEASE = "11"
# Zip has no time before this one.
_ALWAYS = (1980, 1, 1, 0, 0, 0)


class WriterJar(BuildHookInterface):  # type: ignore[type-arg]
    """The hook: an sdist brings the jar along, so that a wheel that is built from it needs no compiler."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make the jar, unless it is there, and say where it goes."""
        del version
        root = Path(self.root)
        jar = root / JAR
        if not jar.exists():
            # Hatchling reads it after this, and the folder goes with the hook.
            self._folder = tempfile.TemporaryDirectory()
            jar = Path(self._folder.name) / Path(JAR).name
            build(root / "pgonce" / "real_time" / "java", jar)
        build_data["force_include"][str(jar)] = JAR


class Readme(MetadataHookInterface):
    """The hook for what an index shows: links and pictures are those of the version's tag."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to the metadata."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = f"{metadata['urls']['Repository']}/{{}}/v{metadata['version']}/"
        text = re.sub(r"(!\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{repository.format('raw')}", text)
        text = re.sub(r"(?<!!)(\[[^\]]*\]\()(?![a-z]+:|#)", rf"\g<1>{repository.format('blob')}", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def build(sources: Path, jar: Path) -> None:
    """Compile `sources` into `jar`."""
    home = os.environ.get("JAVA_HOME")
    compiler = str(Path(home) / "bin" / "javac") if home else shutil.which("javac")
    if compiler is None or not Path(compiler).exists():
        raise SystemExit("javac is missing: install a JDK (openjdk-17), or set JAVA_HOME to one.")
    files = sorted(map(str, sources.rglob("*.java")))
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, "--release", _RELEASE, "-g:none", "-encoding", "UTF-8", "-nowarn", "-d", folder, *files]
        subprocess.run(command, check=True)
        jar.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as packed:
            for file in sorted((Path(folder) / "pgonce").glob("*.class")):
                entry = zipfile.ZipInfo(f"pgonce/{file.name}", _ALWAYS)
                entry.compress_type = zipfile.ZIP_DEFLATED
                packed.writestr(entry, file.read_bytes())
