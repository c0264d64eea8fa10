"""
Are the tables that a batch was written to those of the batches before it?

Pure: runs in the commit. Invariant: a table is known by its oid. A name can come to mean another table, and then the
rows of earlier batches are not beside those of this one.
"""

from __future__ import annotations

from collections.abc import Mapping

Targets = Mapping[str, int]
"""Qualified name to oid."""


def changed_targets(before: Targets | None, now: Targets, *, is_one_table: bool) -> dict[str, str]:
    """
    What is different, by the table that is written to now, each as a sentence; empty where nothing is.

    :param before: the tables of the batches before; None where nobody has recorded them.
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
    """What to remember: of a function, also the tables that this batch has not written to."""
    if is_one_table:
        return dict(now) or None
    moved = set(now.values())
    return {**{name: oid for name, oid in (before or {}).items() if oid not in moved}, **now} or None
