"""
Keep a copy of what a recovery replaces, and bring it back.

Runs on the driver before a start, and in the command ``pgonce``. Invariant: nothing in a checkpoint is replaced or
removed before its bytes and the manifest are in ``pgonce-kept/<UTC time>/``. An undo changes nothing unless it finds
every file as the recovery left it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import CheckpointError, RecoveryError

from .stopped_query import NOTHING_CHANGED, Change

FOLDER = "pgonce-kept"
_MANIFEST = "manifest.json"
_UNDONE = "undone.json"
_CHANGED = re.compile(r"(offsets|commits|state)(/[^/\0]+)+")
"""The files that a recovery changes. A manifest is a file as others are, and an undo writes nothing else."""


@dataclass(frozen=True)
class Kept:
    """
    What was kept of one recovery: for each file, in order, the hash of what it was before and of what it is since.

    A hash is None if the file did not exist, or does not exist now.
    """

    folder: str
    recovery: str
    files: tuple[tuple[str, str | None, str | None], ...]
    newest: tuple[int | None, int | None]

    @property
    def time(self) -> str:
        """When the recovery began, as its folder is named."""
        return self.folder.removeprefix(f"{FOLDER}/")


def kept_folder() -> str:
    """The folder in which a recovery that begins now keeps what it replaces."""
    return f"{FOLDER}/{datetime.now(timezone.utc):%Y-%m-%dT%H-%M-%S.%fZ}"


def keep_aside(
    writer: CheckpointWriter,
    folder: str,
    recovery: str,
    changes: Sequence[Change],
    newest: tuple[int | None, int | None],
) -> None:
    """
    Copy everything that ``changes`` will replace or remove, then write the manifest.

    :param newest: the newest numbers in ``offsets/`` and ``commits/`` when all is done, which an undo compares.
    """
    files = []
    for name, text in changes:
        before = writer.files.read(name)
        if before is not None:
            writer.write(f"{folder}/{name}", before)
        files.append((name, _hash(before), None if text is None else _hash(text.encode())))
    manifest = {
        "recovery": recovery,
        "newest": newest,
        "files": [{"name": name, "before": before, "after": after} for name, before, after in files],
    }
    writer.write(f"{folder}/{_MANIFEST}", json.dumps(manifest, indent=2).encode())


def newest_kept(writer: CheckpointWriter) -> Kept:
    """
    The newest recovery that has not been undone.

    :raises RecoveryError: NOTHING_TO_DO.
    """
    for time in sorted(writer.files.names(FOLDER), reverse=True):
        folder = f"{FOLDER}/{time}"
        text = writer.files.read(f"{folder}/{_MANIFEST}")
        # A recovery without a manifest was cut short before its first change.
        if text is None or writer.files.exists(f"{folder}/{_UNDONE}"):
            continue
        try:
            manifest = json.loads(text)
            files = tuple((_changed(file["name"]), file["before"], file["after"]) for file in manifest["files"])
            return Kept(folder, manifest["recovery"], files, tuple(manifest["newest"]))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                "CHECKPOINT_MALFORMED",
                f"The manifest {writer.location}/{folder}/{_MANIFEST} is not a manifest of pgonce, or was changed.",
                NOTHING_CHANGED,
                "The replaced files are kept in the same folder. To ignore this recovery, move its folder out of "
                f"{FOLDER}.",
            ) from error
    raise RecoveryError(
        "NOTHING_TO_DO",
        f"There is no recovery of the checkpoint {writer.location} that could be undone.",
        NOTHING_CHANGED,
        f"What recoveries replaced is kept in the folder {FOLDER} of the checkpoint.",
    )


def undoing(
    writer: CheckpointWriter, kept: Kept, newest: tuple[int | None, int | None]
) -> list[tuple[str, bytes | None]]:
    """
    The files that bring everything back, with their bytes (None if there was no file), the last change first.

    Files that were not changed yet, because the recovery was cut short, are left out.

    :param newest: the newest numbers in ``offsets/`` and ``commits/`` now.
    :raises RecoveryError: NOTHING_TO_DO, if the checkpoint has changed since.
    """
    there = {name: _hash(writer.files.read(name)) for name, _, _ in kept.files}
    moved = [name for name, before, after in kept.files if there[name] not in (before, after)]
    if moved or (newest != kept.newest and all(there[name] == after for name, _, after in kept.files)):
        raise has_run_since(
            writer, kept, f"{', '.join(moved)} changed" if moved else "offsets/ or commits/ have gone on"
        )
    return [
        (name, None if before is None else writer.files.read(f"{kept.folder}/{name}"))
        for name, before, _ in reversed(kept.files)
        if there[name] != before
    ]


def has_run_since(writer: CheckpointWriter, kept: Kept, what: str) -> RecoveryError:
    """The error for a recovery that cannot be undone any more; ``what`` shows that the query has run."""
    return RecoveryError(
        "NOTHING_TO_DO",
        f"The query has run since the recovery of {kept.time}: {what}.",
        NOTHING_CHANGED,
        f"What the recovery replaced is still kept in {writer.location}/{kept.folder}.",
    )


def mark_undone(writer: CheckpointWriter, kept: Kept, undo: str) -> None:
    """Note that this recovery was undone, so that the next undo takes back the one before it."""
    writer.write(f"{kept.folder}/{_UNDONE}", json.dumps({"undo": undo}).encode())


def _changed(name: str) -> str:
    if not _CHANGED.fullmatch(name) or not {".", ".."}.isdisjoint(name.split("/")):
        raise ValueError(name)
    return name


def _hash(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
