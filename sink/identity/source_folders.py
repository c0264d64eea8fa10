"""
Which folders does a query read files from, according to the running query?

Runs on the driver, in the thread that called the foreachBatch function. Invariant: a source that Spark does not
describe in the one known form is left out, and so proves nothing.
"""

from __future__ import annotations

import os
import re
from typing import Any

from py4j.protocol import Py4JError

_FILE_SOURCE = re.compile(r"FileStreamSource\[(.+)\]", re.DOTALL)
_LOCAL = "file:"


def source_folders(query: Any) -> dict[str, tuple[str, ...]]:
    """For each source of files, its id and the folder that it reads, under every name that the folder has."""
    try:
        described = _described(query)
    except Py4JError:
        # A version of Spark that keeps its sources elsewhere: then the folders are unknown.
        return {}
    found = {source_id: _FILE_SOURCE.fullmatch(text) for source_id, text in described.items()}
    return {source_id: _names(match[1]) for source_id, match in found.items() if match}


def _described(query: Any) -> dict[str, str]:
    sources = query.sources()
    listed = [sources.apply(at) for at in range(sources.size())]
    return {str(at): source.toString() for at, source in enumerate(listed)}


def _names(folder: str) -> tuple[str, ...]:
    """The folder as Spark describes it, and the one that its links lead to."""
    if not folder.startswith(_LOCAL):
        return (folder,)
    path = folder.removeprefix(_LOCAL)
    return tuple(dict.fromkeys((folder, _LOCAL + os.path.realpath(path))))
