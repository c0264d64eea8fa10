"""
The files that hatch makes of a tree of sources.

Runs in: pytest. Invariant: the sources are those of the named directory, even if another version is installed here.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def build(kind: str, sources: Path, directory: Path) -> Path:
    """Build an ``sdist`` or a ``wheel`` into a new directory, and return the file."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(command, cwd=sources, check=True, stdout=subprocess.DEVNULL)
    (file,) = directory.iterdir()
    return file
