"""
Make small batches take a path that they would seldom take, and record that it was taken.

Runs in: the driver under test; the laboratory reads what it leaves. Invariant: only a threshold is lowered, what a path
does is the product's own; each time one is taken, a byte is added to a file of its name.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

from pgonce.sink.writing.by_key import upsert

MERGED = "upserts by MERGE"

_MERGED_ROWS = 1


def lower_thresholds(directory: Path) -> None:
    """From now on small upserts are merged."""
    upsert.MERGED_ROWS = _MERGED_ROWS
    real = upsert.merged

    @functools.wraps(real)
    def merged(*arguments: Any) -> int | None:
        done = real(*arguments)
        if done is not None:
            take(directory, MERGED)
        return done

    upsert.merged = merged


def take(directory: Path, path: str) -> None:
    """Count that a path was taken."""
    folder = directory / "paths"
    folder.mkdir(exist_ok=True)
    file = os.open(folder / path, os.O_CREAT | os.O_APPEND | os.O_WRONLY)
    os.write(file, b".")
    os.close(file)


def taken(directory: Path) -> dict[str, int]:
    """How often each path was taken."""
    return {file.name: file.stat().st_size for file in sorted((directory / "paths").glob("*"))}
