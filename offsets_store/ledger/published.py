"""
What a batch has put into the target, and whether its tables are those of the batches before it.

Pure: runs in the commit, after the rows are written. Invariant: a table is known by its oid. Its name can come to mean
another table; then the rows of earlier batches are not in the same table as those of this one. A change is recorded
with the batch and logged; with pinTable it refuses the batch.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import CommitError
from ..verdict.facts import Batch, Writer

_log = logging.getLogger("pgonce")

Targets = Mapping[str, int]
"""Qualified name to oid."""


@dataclass(frozen=True)
class WrittenTables:
    """
    What is known of a writer's tables after a batch.

    ``known`` are the tables to remember, None if there is nothing new to remember. ``changes`` says in a sentence what
    is different about a table since earlier batches.
    """

    known: Targets | None = None
    changes: Mapping[str, str] = field(default_factory=dict)


def changed_targets(before: Targets | None, now: Targets, *, is_one_table: bool) -> dict[str, str]:
    """
    What is different, as a sentence for each table that is written to now; empty if nothing is.

    :param before: the tables of earlier batches; None if they were not recorded.
    :param is_one_table: whether the sink writes to a single table. A function may write to another one at any time.
    """
    found = {}
    names = {oid: name for name, oid in (before or {}).items()}
    for name, oid in now.items():
        if not before or before.get(name) == oid:
            continue
        if name in before:
            found[name] = (
                f"{name} is not the table that earlier batches were written to (its oid was {before[name]}, and is "
                f"{oid}): it was dropped and created again, exchanged for another, or restored from a dump."
            )
        elif oid in names:
            found[name] = f"{name} was called {names[oid]} when earlier batches were written."
        elif is_one_table:
            found[name] = f"Rows go into {name}; those of earlier batches went into {', '.join(before)}."
    return found


def known_targets(before: Targets | None, now: Targets, *, is_one_table: bool) -> dict[str, int] | None:
    """What to remember. For a function, that includes tables that this batch has not written to."""
    if is_one_table:
        return dict(now) or None
    moved = set(now.values())
    return {**{name: oid for name, oid in (before or {}).items() if oid not in moved}, **now} or None


@dataclass(frozen=True)
class WrittenAs:
    """How rows were written into one table: ``recorded`` is a JSON object, which its ``digest`` tells from others."""

    recorded: Mapping[str, Any]
    digest: str

    @property
    def replaces_all(self) -> bool:
        """Whether all rows of the table gave way to those of the batch."""
        return bool(self.recorded["options"]["mode"] == "complete")


@dataclass(frozen=True)
class Published:
    """
    What a batch put into the target: how many rows, and how they came (``inline``, ``staged``, ``function`` ...).

    ``dropped`` counts the rows that were not written, because an earlier batch had published them. ``targets`` are the
    tables that were written to. ``counts`` says what became of the rows, where not all of them were simply written.
    ``tables`` has the number of rows of each table, if there are several.
    ``notes`` has a sentence on some of the tables: what the batch has altered about one, or does not write to it.
    ``written_as`` says how rows are written into each table, by its qualified name.
    """

    rows: int
    transport: str
    dropped: int = 0
    targets: Targets | None = None
    counts: Mapping[str, int] | None = None
    tables: Mapping[str, int] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    written_as: Mapping[str, WrittenAs] = field(default_factory=dict)


def compared_with_earlier(
    batch: Batch, writer: Writer | None, now: Targets, *, pinned: bool, is_one_table: bool
) -> WrittenTables:
    """
    The tables to remember after this batch, and what has changed about them.

    :param writer: what is known of earlier batches, and of the tables that they were written to.
    :param now: the tables that this batch was written to.
    :raises CommitError: TARGET_CHANGED, if they are ``pinned``.
    """
    earlier = writer.targets if writer else None
    changes = changed_targets(earlier, now, is_one_table=is_one_table)
    if changes and pinned:
        raise CommitError.usual(
            "TARGET_CHANGED",
            f"pinTable is set, and batch {batch.batch_id} would go into another table than those before it. "
            + " ".join(changes.values()),
            "If the table was replaced on purpose, start the query once with pinTable=false (pin_table=False): from "
            "that batch on, the new table is the pinned one.",
        )
    for change in changes.values():
        _log.warning("batch %s of query %s: %s", batch.batch_id, batch.query_id, change)
    return WrittenTables(known_targets(earlier, now, is_one_table=is_one_table), changes)
