"""
What does a commit say of its rows, for the ledger to record?

Pure: made by the work of a commit, inside its transaction. Invariant: it tells what this batch has done; what that
means beside earlier batches is found out later, in :class:`~pgonce.offsets_store.verdict.targets.WrittenTables`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..verdict.targets import Targets


@dataclass(frozen=True)
class WrittenAs:
    """How rows were written into one table: ``recorded`` is a JSON object, which its ``digest`` tells from others."""

    recorded: Mapping[str, Any]
    digest: str


@dataclass(frozen=True)
class Published:
    """
    What a batch put into the target: how many rows, and how they came (``inline``, ``staged``, ``function`` ...).

    ``dropped`` counts the rows that were not written, because an earlier batch had published them. ``targets`` are the
    tables that were written to. ``counts`` says what became of the rows, where not all of them were simply written.
    ``tables`` has the number of rows of each table, if there are several.
    ``emptied`` counts the rows that a batch which starts over has deleted; None if it does not.
    ``notes`` has a sentence on some of the tables: what the batch has altered about one, or does not write to it.
    ``written_as`` says how rows are written into each table, by its qualified name.
    """

    rows: int
    transport: str
    dropped: int = 0
    targets: Targets | None = None
    counts: Mapping[str, int] | None = None
    tables: Mapping[str, int] | None = None
    emptied: int | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    written_as: Mapping[str, WrittenAs] = field(default_factory=dict)
