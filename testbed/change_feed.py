"""
The changes that a stream from a database brings, and what the target must hold in the end.

Pure: a seed makes the same feed every time. Invariant: in every form of the changes, and however often some of them
come again, :meth:`ChangeFeed.final_state` is the source's table after the last one.

Every form was compared with what Debezium 3.5 sent for a table of Postgres 18; tests/repository/test_testbed_feed.py
keeps some of its records.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from change_feed_debezium import Decimals, Record, records_of
from change_feed_source import COLUMNS, UNAVAILABLE, Change, Identity, Row, SourceHistory

__all__ = ["COLUMNS", "UNAVAILABLE", "Change", "ChangeFeed", "Record", "Row"]


@dataclass(frozen=True)
class ChangeFeed:
    """
    A snapshot of the table ``orders`` (its columns are in ``COLUMNS``), and the stream of changes that follows.

    :param keys: so many keys there are; half of them are in the snapshot, and those of deleted rows are used again.
    :param events: how many changes the stream has; a primary key update is two. Neither the snapshot nor tombstones nor
        what is sent again counts.
    :param deletes: the share of deletes among them.
    :param key_changes: the share of primary key updates.
    :param again: how often a statement is about the key of the one before, if that is possible.
    :param large_notes: the share of notes that Postgres stores apart from their rows: an update that leaves one as it
        is sends ``UNAVAILABLE`` in its place.
    :param identity: the table's replica identity. With ``full``, ``before`` has all values, and all values are sent.
    :param decimals: how Debezium's envelopes have ``amount``: as it has it by default, as a text, or as a number.
    :param replays: how many times a stretch of older events is sent again, after newer ones of the same keys, as two
        connectors do when one of them was believed dead. The last stretch ends the feed.
    :param replayed: how many events such a stretch has.
    """

    seed: int
    keys: int = 50
    events: int = 500
    deletes: float = 0.15
    key_changes: float = 0.03
    again: float = 0.4
    large_notes: float = 0.2
    identity: Identity = "default"
    decimals: Decimals = "string"
    replays: int = 0
    replayed: int = 20

    def history(self) -> Iterator[Change]:
        """Every change once: the snapshot, and then one transaction after the other, by LSN."""
        return self._source().changes()

    def arrivals(self) -> Iterator[Change]:
        """The changes as they are sent, with those that are sent again."""
        return self._with_replays() if self.replays else self.history()

    def records(self) -> Iterator[Record]:
        """What Debezium sends to Kafka: its envelopes, and a tombstone after each delete."""
        return records_of(self.arrivals(), self.decimals)

    def final_state(self) -> dict[int, Row]:
        """The source's rows by key, after everything."""
        return dict(self._final_state)

    @cached_property
    def _final_state(self) -> dict[int, Row]:
        source = self._source()
        for _ in source.changes():
            pass
        return source.rows

    def _source(self) -> SourceHistory:
        return SourceHistory(
            seed=self.seed,
            keys=self.keys,
            events=self.events,
            deletes=self.deletes,
            key_changes=self.key_changes,
            again=self.again,
            large_notes=self.large_notes,
            identity=self.identity,
        )

    def _with_replays(self) -> Iterator[Change]:
        changes = list(self.history())
        chosen = random.Random(f"replays of {self.seed}")
        snapshot = len(changes) - self.events
        ends = [chosen.randrange(snapshot + self.events // 4, len(changes)) for _ in range(self.replays - 1)]
        sent = 0
        for end in (*sorted(ends), len(changes)):
            yield from changes[sent:end]
            yield from _outdated_stretch(changes[:end], self.replayed, chosen)
            sent = end


def _outdated_stretch(sent: list[Change], length: int, chosen: random.Random) -> list[Change]:
    # What is sent again has to matter: the key of its first change was changed once more after the stretch.
    last = {change.key: place for place, change in enumerate(sent)}
    starts = [place for place, change in enumerate(sent) if last[change.key] >= place + length]
    if not starts:
        raise ValueError("No stretch of this feed has a newer change after it: more events or fewer keys would help.")
    start = chosen.choice(starts)
    return sent[start : start + length]
