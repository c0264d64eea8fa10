"""
Would those who use the living table notice that another has taken its place?

Pure: runs in the command ``pgonce swap``. Invariant: what a query or a writer of the living table may rely on, and the
new one does not have, is named.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .described_table import Column, Table


def differences(living: Table, new: Table) -> list[str]:
    """What may break, in words."""
    return [*_columns(living, new), *_order(living, new), *_parts(living, new)]


def _columns(living: Table, new: Table) -> Iterator[str]:
    theirs = {column.name: column for column in new.columns}
    for column in living.columns:
        other = theirs.pop(column.name, None)
        if other is None:
            yield f"column {column.name} is missing"
        else:
            yield from _column(column, other)
    for column in theirs.values():
        if column.not_null and column.default is None and not column.generated:
            yield f"column {column.name} is new, and needs a value"


def _column(living: Column, new: Column) -> Iterator[str]:
    if living.type != new.type:
        yield f"column {living.name} is {new.type}, not {living.type}"
    if living.not_null != new.not_null:
        yield f"column {living.name} {'must not' if new.not_null else 'may'} be null"
    if living.generated != new.generated:
        yield f"column {living.name} is generated in another way"
    elif living.default != new.default:
        yield f"column {living.name} has the default {new.default or 'null'}, not {living.default or 'null'}"


def _order(living: Table, new: Table) -> Iterator[str]:
    """Whoever reads or writes all columns by their order needs the same columns first."""
    names, others = [column.name for column in living.columns], [column.name for column in new.columns]
    if set(names) <= set(others) and others[: len(names)] != names:
        yield f"its columns come in another order: {', '.join(others)}"


def _parts(living: Table, new: Table) -> Iterator[str]:
    lacking = Counter(part.definition for part in living.parts) - Counter(part.definition for part in new.parts)
    for part in living.parts:
        if lacking[part.definition] > 0 and not part.definition.startswith("NOT NULL "):
            lacking[part.definition] -= 1
            yield f"it lacks {part.name} ({part.definition.strip()})"
