"""
Has the query that fills the new table got as far as the one that feeds the living one?

Pure: runs in the command ``pgonce swap``. Invariant: the new table has caught up only if the stored ends say so. Ends
that do not say which rows they stand for are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pgonce.offsets_store.offsets.compare import Offsets, kafka_positions, same, says_which_rows, tells_which_rows


@dataclass(frozen=True)
class End:
    """How far a writer has stored, and the ids of the topics that it reads, as far as these are known."""

    offsets: Offsets | None
    topic_ids: dict[str, str]


class NotComparableError(Exception):
    """Nothing proves whether the new table has caught up; the text says why."""


def missing(living: Sequence[End], new: Sequence[End]) -> list[str]:
    """
    What the writers of the living table have stored, and those of the new one have not, in words; empty if all is.

    :raises NotComparableError: if that cannot be told.
    """
    if not living or not new:
        raise NotComparableError(f"no query feeds the {'new' if living else 'living'} table")
    if all(says_which_rows(end.offsets) for end in (*living, *new)):
        _refuse_other_topics(living, new)
        return _behind(_positions(living, max), _positions(new, min))
    if len(living) == len(new) == 1 and _is_same(living[0].offsets, new[0].offsets):
        return []
    raise NotComparableError("their stored offsets do not say which rows are meant")


def _positions(ends: Iterable[End], choose: Callable[[int, int], int]) -> dict[tuple[str, int], int]:
    """The position of each partition; of several writers of one table, the one that counts."""
    found: dict[tuple[str, int], int] = {}
    for end in ends:
        for _, topic, partition, position in kafka_positions(end.offsets or {}):
            place = topic, partition
            found[place] = choose(position, found.get(place, position))
    return found


def _behind(living: dict[tuple[str, int], int], new: dict[tuple[str, int], int]) -> list[str]:
    return [
        f"{topic}-{partition} is stored to {end}, and in the new table to {new.get((topic, partition), 'nowhere')}"
        for (topic, partition), end in sorted(living.items())
        if new.get((topic, partition), -1) < end
    ]


def _refuse_other_topics(living: Iterable[End], new: Iterable[End]) -> None:
    """:raises NotComparableError: if a topic was deleted and created again between the two."""
    known = {topic: of for end in living for topic, of in end.topic_ids.items()}
    others = sorted({topic for end in new for topic, of in end.topic_ids.items() if known.get(topic, of) != of})
    if others:
        raise NotComparableError(f"they have read different topics of the name {', '.join(others)}")


def _is_same(living: Offsets | None, new: Offsets | None) -> bool:
    return all(map(tells_which_rows, (living or {}).values())) and same(living, new)
