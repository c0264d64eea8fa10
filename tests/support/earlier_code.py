"""
The sources of an earlier commit, as the repository's history has them.

Runs in: pytest. Invariant: a clone without its history gets the commit from where it was cloned.
"""

from __future__ import annotations

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from support.named_tests import ROOT


def earlier_sources(commit: str, folder: Path) -> Path:
    """Put the files of ``commit`` (all 40 digits) into ``folder``, and return it."""
    if subprocess.run(["git", "cat-file", "-e", commit], cwd=ROOT, check=False, stderr=subprocess.DEVNULL).returncode:
        subprocess.run(["git", "fetch", "--quiet", "--depth=1", "origin", commit], cwd=ROOT, check=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=BytesIO(archive)) as sources:
        sources.extractall(folder, filter="data")
    return folder
