"""
Set a consumer group to what Postgres holds of a query's topics.

Runs in a shell, or wherever a program calls it. Invariant: only committed ends of the ledger are set, of several
sinks the least; so the group is never ahead of Postgres, and goes back if the ledger has gone back.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..kafka.groups import group_in_use, group_offsets, has_members, log_ends, move_group
from ..kafka.settings import Brokers
from ..ledger.session import reading
from ..status.reached import living_writers
from ..status.read_stored import writers_of
from .plan import (
    Move,
    beyond_the_log,
    ends_to_export,
    mark_of,
    moves_of,
    not_ours,
    strangers,
    topic_is_shorter,
)


@dataclass(frozen=True)
class Exported:
    """What one look has found and done: the query, the last batch of the sink that is furthest behind, the moves."""

    query_id: str
    batch_id: int | None
    partitions: int
    moves: list[Move]


def export_group(
    query: str, group: str, brokers: Brokers, url: str = "", *, sink: str | None = None, take_over: bool = False
) -> Exported:
    """
    Set the group once, and say what has changed; nothing is written to Kafka if nothing has.

    :param sink: export this sink alone, instead of the least of all.
    :param take_over: overwrite offsets that this query has not set.
    :raises OffsetsError: GROUP_IN_USE, GROUP_NOT_OURS, PARTITIONS_GONE, and what there is to say of the query or the
        brokers.
    """
    with reading(url) as connection:
        living = living_writers(writers_of(connection, query, sink), query)
    first = living[0]
    ends = ends_to_export(living, query)
    log = log_ends(ends, brokers)
    if shorter := beyond_the_log(ends, log):
        raise topic_is_shorter(ends, log, shorter)
    before = group_offsets(group, ends, brokers)
    mark = mark_of(first.query_id)
    if not take_over:
        marks = {mark, *(mark_of(writer.replaces) for writer in living if writer.replaces)}
        if strange := strangers(before, ends, marks):
            # A reader that has left in between has stored its offsets all the same.
            raise group_in_use(group) if has_members(group, brokers) else not_ours(group, before, strange)
    moves = moves_of(ends, before, mark)
    move_group(group, {(move.topic, move.partition): move.after for move in moves}, mark, brokers)
    batches = [writer.batch_id for writer in living if writer.batch_id is not None]
    return Exported(first.query_id, min(batches, default=None), len(ends), moves)
