"""
Is a batch written to the same tables as the batches before it?

Pure: runs in the commit. Invariant: a table is known by its oid. Its name can come to mean another table; then the rows
of earlier batches are not in the same table as those of this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
