"""
Make small batches take paths that they would seldom take, and record that these were taken.

Runs in: the driver under test; the laboratory reads what it leaves. Invariant: only thresholds are lowered, what a path
does is the product's own; each time one is taken, a byte is added to a file of its name.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.verdict.facts import PlannedBatch
from pgonce.sink.foreach_batch import batch_writer
from pgonce.sink.foreach_batch.batch_writer import PostgresBatchWriter, WorkOf
from pgonce.sink.foreach_batch.frame_rows import ArrivingBatches
from pgonce.sink.writing.by_key import upsert
from pgonce.sink.writing.rows import Rows

MERGED, BEGAN_EARLY, PUBLISHED_EARLY = "upserts by MERGE", "transactions begun early", "early ones that had their rows"

_MERGED_ROWS = 1
# On a busy machine the rows of a small batch may take longer than the product counts as soon.
_SOON_SECONDS = 5.0
# Time enough to strike a transaction that has begun and waits for its rows.
_PATIENCE_SECONDS = 2.0


def lower_thresholds(directory: Path) -> None:
    """From now on small upserts are merged, and almost every batch of ``PostgresBatchWriter`` begins early."""
    upsert.MERGED_ROWS = _MERGED_ROWS
    batch_writer._SOON_SECONDS = _SOON_SECONDS
    batch_writer.PATIENCE_SECONDS = _PATIENCE_SECONDS
    real = upsert.merged

    @functools.wraps(real)
    def merged(*arguments: Any) -> int | None:
        done = real(*arguments)
        if done is not None:
            take(directory, MERGED)
        return done

    upsert.merged = merged


def with_signs(writer: PostgresBatchWriter, directory: Path, workload: str) -> PostgresBatchWriter:
    """The same writer; while a transaction of its waits for rows, :func:`early_sign` is there."""
    writer._commits = _SeenCommits(writer._commits, directory, early_sign(directory, workload))
    return writer


def early_sign(directory: Path, workload: str) -> Path:
    """A file that is there while a transaction of this workload has begun, and its rows may still have to come."""
    return directory / f"early-{workload}"


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


class _SeenCommits(batch_writer.EarlyCommits):
    def __init__(self, commits: batch_writer.EarlyCommits, directory: Path, sign: Path) -> None:
        super().__init__(commits.settings)
        self._directory = directory
        self._sign = sign

    def commit(self, batch: PlannedBatch, rows: Rows, arriving: ArrivingBatches, work_of: WorkOf) -> None:
        def seen(of: Rows) -> Work:
            work = work_of(of)
            # An early commit is given rows that do not wait for ever.
            return work if of is rows else replace(work, publish=self._signed(work.publish))

        super().commit(batch, rows, arriving, seen)

    def _signed(self, publish: Callable[..., Any]) -> Callable[..., Any]:
        def signed(*arguments: Any) -> Any:
            self._sign.touch()
            take(self._directory, BEGAN_EARLY)
            try:
                published = publish(*arguments)
            finally:
                self._sign.unlink(missing_ok=True)
            take(self._directory, PUBLISHED_EARLY)
            return published

        return signed
