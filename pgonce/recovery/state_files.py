"""
List the files of a stateful query's state, by their names.

Runs where a stopped query is looked at. Invariant: no file is read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from pgonce.offsets_store.checkpoint.files import CheckpointFiles

_VERSION = re.compile(r"\.?([0-9]+)(_[^.]+)?\.(delta|snapshot|changelog|zip)(\.crc)?", re.ASCII)
_WHOLE = frozenset({"snapshot", "zip"})
# The folders in which RocksDB keeps its files; no store has such a name.
_NO_STORES = frozenset({"SSTs", "logs", "archive"})


class StateFile(NamedTuple):
    """
    A file of a partition's state, by its name in the checkpoint.

    ``is_whole`` if it is read instead of all older files, and ``is_named_in_commit`` if Spark finds it only by the
    commit log.
    """

    name: str
    version: int
    is_whole: bool
    is_named_in_commit: bool


def state_files(files: CheckpointFiles, above: int) -> frozenset[StateFile]:
    """The files of versions above ``above``, with their checksums. Each partition and store is listed once."""
    found = (_state_file(name) for name in _names(files))
    return frozenset(file for file in found if file is not None and file.version > above)


def _names(files: CheckpointFiles) -> Iterator[str]:
    for operator in filter(str.isdecimal, files.names("state")):
        for partition in filter(str.isdecimal, files.names(f"state/{operator}")):
            folder = f"state/{operator}/{partition}"
            for name in files.names(folder):
                yield f"{folder}/{name}"
                # A join has several stores, each in a folder of its own.
                if "." not in name and name not in _NO_STORES:
                    yield from (f"{folder}/{name}/{file}" for file in files.names(f"{folder}/{name}"))


def _state_file(name: str) -> StateFile | None:
    match = _VERSION.fullmatch(name.rpartition("/")[2])
    return match and StateFile(name, int(match[1]), match[3] in _WHOLE, match[2] is not None)
