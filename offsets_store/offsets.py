"""
Compare offsets: whether two sets are the same, whether one goes back, and whether rows with positions leave a gap.

Pure: runs anywhere. Invariant: two sets are called the same only if nothing was lost when they were read (JSON that
cannot be held exactly stays a text), and an unknown offset equals nothing. A row is dropped only if its position is
below what is stored for its partition; a batch is accepted only if no row between what is stored and its own start can
have been left out.

Positions have the shape of a Kafka source's offsets: source id to topic to partition to next position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NoReturn, TypeGuard

Offsets = dict[str, Any]
"""Source id (``"0"``, ``"1"``, or the name of a named source) to its parsed offset.

An offset is a text if it is not JSON, or JSON that cannot be held exactly. It is None if the source had none yet.
"""
_PARTITION = re.compile(r"0|[1-9][0-9]*", re.ASCII)


def parse_offset(text: str) -> Any:
    """
    Read one source's offset, as the offset log, a progress event or the running query give it.

    ``-`` (no offset yet) gives None. A text that is not JSON, or cannot be held exactly, is returned as it is.
    """
    if text == "-":
        return None
    try:
        return decode_exactly(text)
    except ValueError:
        return text


def is_kafka(offset: Any) -> TypeGuard[dict[str, dict[str, int]]]:
    """Whether an offset has the shape ``{"topic": {"0": 23}}``: the next offset to read, by partition."""
    return (
        isinstance(offset, dict)
        and bool(offset)
        and all(
            isinstance(partitions, dict)
            and bool(partitions)
            and all(
                _PARTITION.fullmatch(partition) and type(position) is int and position >= 0
                for partition, position in partitions.items()
            )
            for partitions in offset.values()
        )
    )


def kafka_partitions(offsets: Offsets) -> set[tuple[str, int]]:
    """Every topic and partition that any source reads."""
    return {position[1:3] for position in kafka_positions(offsets)}


def kafka_topics(offsets: Offsets) -> set[str]:
    """Every topic that any source reads."""
    return {topic for topic, _ in kafka_partitions(offsets)}


def says_which_rows(offsets: Offsets | None) -> bool:
    """Whether equal offsets mean equal rows. With Kafka they do; with files they were found not to."""
    return bool(offsets) and all(map(is_kafka, (offsets or {}).values()))


def tells_which_rows(offset: Any) -> bool:
    """
    Whether an offset alone says which rows come next, so that a checkpoint can be written from it.

    It does with Kafka, rate-micro-batch and Delta, whose shapes these are. The offset of a file source is a line number
    in a list that is kept in another file, and a number alone can mean anything.
    """
    if not isinstance(offset, dict):
        return False
    return (
        is_kafka(offset)
        or offset.keys() == {"offset", "timestamp"}
        or {"reservoirId", "reservoirVersion"} <= offset.keys()
    )


def same(a: Offsets | None, b: Offsets | None) -> bool:
    """
    Whether both have the same offsets of the same sources.

    What is unknown (None, no sources at all, or a source whose offset is None) equals nothing, not even itself.
    """
    return bool(a) and same_json(a, b) and None not in (a or {}).values()


def goes_back(start: Offsets | None, end: Offsets | None) -> list[str]:
    """
    The texts for the Kafka partitions whose end is before their start, or that no longer have an end.

    In either case a topic was recreated, or a checkpoint is older than its ledger. An unknown side shows nothing.
    """
    if start is None or end is None:
        return []
    ends = places(end)
    found = []
    for (source_id, topic, partition), start_offset in sorted(places(start).items()):
        end_offset = ends.get((source_id, topic, partition))
        if end_offset is None:
            found.append(f"{topic}-{partition} was at {start_offset} and is gone")
        elif end_offset < start_offset:
            found.append(f"{topic}-{partition} was at {start_offset} and goes back to {end_offset}")
    return found


def kafka_positions(offsets: Offsets) -> Iterator[tuple[str, str, int, int]]:
    """Source id, topic, partition and position of all that is Kafka's in ``offsets``."""
    for source_id, offset in offsets.items():
        if is_kafka(offset):
            for topic, partitions in offset.items():
                for partition, position in partitions.items():
                    yield source_id, topic, int(partition), position


Place = tuple[str, str, int]
"""A source's id, a topic, and the number of one of its partitions."""
TopicPartition = tuple[str, int]
"""A topic, and the number of one of its partitions."""


@dataclass(frozen=True)
class Span:
    """The positions of a batch's rows: the least in each partition, and the one after the greatest."""

    first: Offsets
    next: Offsets


def places(positions: Offsets | None) -> dict[Place, int]:
    """The position of each place; other sources than Kafka are left out."""
    return {found[:3]: found[3] for found in kafka_positions(positions or {})}


def by_partition(positions: Offsets | None) -> dict[TopicPartition, int]:
    """The position of each topic and partition, for positions of one source."""
    return {found[1:3]: found[3] for found in kafka_positions(positions or {})}


def furthest(*sets: Offsets | None) -> Offsets:
    """The greatest position of each partition in any of ``sets``."""
    found: dict[Place, int] = {}
    for positions in sets:
        for place, position in places(positions).items():
            found[place] = max(position, found.get(place, 0))
    return _as_offsets(found)


def least_common(first: Offsets, *others: Offsets) -> Offsets:
    """The least position of each partition that all of them have."""
    known = [places(positions) for positions in others]
    return _as_offsets(
        {
            place: min(position, *(each[place] for each in known))
            for place, position in places(first).items()
            if all(place in each for each in known)
        }
    )


def only(positions: Offsets, wanted: Offsets) -> Offsets:
    """The positions of the partitions that ``wanted`` has."""
    there = places(wanted)
    return _as_offsets({place: position for place, position in places(positions).items() if place in there})


def _as_offsets(positions: Mapping[Place, int]) -> Offsets:
    found: Offsets = {}
    for (source_id, topic, partition), position in positions.items():
        found.setdefault(source_id, {}).setdefault(topic, {})[str(partition)] = position
    return found


def left_out(start: Offsets, stored: Offsets | None) -> list[str]:
    """
    The texts for the partitions in which a batch starts after what is stored: rows between the two may be missing.

    If nothing is stored of a partition, all its rows before the batch may be missing.
    """
    known = places(stored)
    return [
        f"{topic}-{partition} starts at {position}, stored is {known.get((source_id, topic, partition), 'nothing')}"
        for (source_id, topic, partition), position in sorted(places(start).items())
        if position > known.get((source_id, topic, partition), 0)
    ]


def below(first: Offsets, stored: Offsets | None) -> bool:
    """Whether the first row of any partition is below what is stored, so that rows must be dropped."""
    known = places(stored)
    return any(position < known.get(place, 0) for place, position in places(first).items())


# From here on, a float may stand for several whole numbers, while jsonb returns all digits.
_FLOATS_ARE_WHOLE = 2.0**53


def decode_exactly(text: str) -> Any:
    """
    Decode a JSON text.

    :raises ValueError: if it is not JSON, or cannot be held exactly.
    """
    try:
        value = _DECODER.decode(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    # jsonb holds neither a NUL nor half a surrogate pair (UnicodeEncodeError). Only escapes can bring them in.
    if "\\u" in text and b"\\u0000" in json.dumps(value, ensure_ascii=False).encode():
        raise ValueError("a NUL cannot be held")
    return value


def same_json(a: Any, b: Any) -> bool:
    """Whether both are one JSON value: the order of keys does not count, 1 and 1.0 are the same, 1 and true are not."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same_json(value, b[key]) for key, value in a.items())
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same_json, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is repeated")
    return found


def _exact_float(text: str) -> float:
    value = float(text)
    if not abs(value) < _FLOATS_ARE_WHOLE or Decimal(repr(value)) != Decimal(text):
        raise ValueError("a number would be rounded")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys, parse_float=_exact_float, parse_constant=_no_constant)
