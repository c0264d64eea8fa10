"""
A row that cannot be encoded, on its way to the dead letters.

Made in tasks, and on the driver for foreachBatch; written in the commit. Invariant: it goes where the other rows of its
task attempt go, and counts only if that attempt is chosen.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class UnfitRow:
    """
    A row of the batch, as the text of a JSON object, and why it cannot be written.

    ``column_name`` has the value that Postgres cannot hold; ``code`` and ``message`` are those of the error that it
    would be without dead letters. ``place`` is the row's topic, partition and offset in Kafka, where rows carry them.
    """

    row_data: str = field(repr=False)
    column_name: str
    code: str
    message: str
    place: tuple[str, int, int] | None = None
