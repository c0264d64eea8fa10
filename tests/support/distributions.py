"""
What is installed from a tree of sources: which files does hatch make of it?

Runs in: pytest. Invariant: the sources are those of the directory that is named, whatever is installed here.
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
