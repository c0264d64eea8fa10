"""
Has the query that fills the new table read all that the one which feeds the living table has read?

Pure: runs in the command ``pgonce swap``. Invariant: the new table has caught up only if stored offsets say so: its
query has begun where the other one has, or before, and has got as far. Offsets that do not say which rows they stand
for are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..offsets.compare import Offsets, kafka_positions, same, says_which_rows, tells_which_rows


@dataclass(frozen=True)
class Reach:
    """
    Which part of its sources a writer has stored, and the ids of the topics that it reads, as far as these are known.

    ``start`` is where the first batch of its rows began; None where no record tells.
    """

    offsets: Offsets | None
    topic_ids: dict[str, str]
    start: Offsets | None = None


class NotComparableError(Exception):
    """Nothing proves whether the new table has caught up; the text says why."""


def missing(living: Sequence[Reach], new: Sequence[Reach]) -> list[str]:
    """
    What the writers of the living table have stored last, and those of the new one have not, in words; empty if all is.

    :raises NotComparableError: if that cannot be told, or the writers of the new table have begun later.
    """
    if not living or not new:
        raise NotComparableError(f"no query feeds the {'new' if living else 'living'} table")
    if all(says_which_rows(end.offsets) for end in (*living, *new)):
        _refuse_other_topics(living, new)
        behind = _behind(_positions(living, max), _positions(new, min))
        if not behind:
            _refuse_later_start(living, new)
        return behind
    if len(living) == len(new) == 1 and _is_same(living[0].offsets, new[0].offsets):
        if not _is_same(living[0].start, new[0].start):
            raise NotComparableError("it is not recorded that both queries began at the same place")
        return []
    raise NotComparableError("their stored offsets do not say which rows are meant")


def _positions(ends: Iterable[Reach], choose: Callable[[int, int], int]) -> dict[tuple[str, int], int]:
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


def _refuse_later_start(living: Sequence[Reach], new: Sequence[Reach]) -> None:
    """:raises NotComparableError: unless each writer of the new table began where those of the living one did."""
    starts = [dict(_by_partition(reach.start)) for reach in new if reach.start is not None]
    if len(starts) < len(new):
        raise NotComparableError("no record tells any more where the query that fills the new table began")
    later = []
    for place in sorted({place for reach in living for place, _ in _by_partition(reach.offsets)}):
        # A partition that was added later is read from its beginning. Where no record tells any more when the living
        # table's query began, that may have been at the beginning, too.
        began = min(dict(_by_partition(reach.start)).get(place, 0) for reach in living)
        begins = max(start.get(place, 0) for start in starts)
        if begins > began:
            since = f"from {began} on" if all(reach.start is not None for reach in living) else "perhaps from 0 on"
            later.append(f"{place[0]}-{place[1]} is stored {since}, and in the new table from {begins} on")
    if later:
        raise NotComparableError(f"its query began later: {'; '.join(later)}")


def _by_partition(offsets: Offsets | None) -> list[tuple[tuple[str, int], int]]:
    return [((topic, partition), position) for _, topic, partition, position in kafka_positions(offsets or {})]


def _refuse_other_topics(living: Iterable[Reach], new: Iterable[Reach]) -> None:
    """:raises NotComparableError: if a topic was deleted and created again between the two."""
    known = {topic: of for end in living for topic, of in end.topic_ids.items()}
    others = sorted({topic for end in new for topic, of in end.topic_ids.items() if known.get(topic, of) != of})
    if others:
        raise NotComparableError(f"they have read different topics of the name {', '.join(others)}")


def _is_same(living: Offsets | None, new: Offsets | None) -> bool:
    return bool(living) and all(map(tells_which_rows, (living or {}).values())) and same(living, new)
