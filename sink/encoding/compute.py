"""
pyarrow's compute functions, which are imported for the first row.

Runs where rows are read. pyarrow writes a docstring for each of its 300 functions when they are imported, which takes a
quarter of the time of all that a planner's or a commit worker needs to know of columns; and those read no row.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    import pyarrow.compute

    found = globals()[name] = getattr(pyarrow.compute, name)
    return found
