"""
Begin a run of a real-time or continuous query in the ledger, and record what it has done while it runs.

Runs on the driver. Invariant: a run begins with a batch without rows, which is judged and committed as every batch is:
from then on it is the owner, no task of an older run can write, and the positions are those at which it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from uuid import uuid4

from sqlalchemy import Connection

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.ledger.positions import (
    RunPositions,
    TopicPartition,
    advance,
    begin_in_tx,
    positions_of,
    refuse_less,
)
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets, Span, furthest, kafka_positions, places
from pgonce.offsets_store.postgres.connect import connect, driver_connection
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

from ..encoding.encoded_types import EncodedColumn
from ..identity.planned_batch import with_topic_ids
from ..options.destination import Destination
from ..writing.rows import Rows
from ..writing.write_batch import work_into

TRANSPORT = "real-time"


@dataclass
class Run:
    """One run: its identity, and the number of the last batch that it has recorded."""

    settings: CommitSettings
    destination: Destination
    columns: tuple[EncodedColumn, ...]
    query_id: str
    query_name: str | None
    checkpoint_location: str
    sink_name: str | None
    run_id: str = field(default_factory=lambda: str(uuid4()))
    batch_id: int = 0
    ends: Offsets = field(default_factory=dict)
    stored: RunPositions = field(default_factory=lambda: RunPositions(0, {}, 0))

    @property
    def writer_id(self) -> int:
        """The writer's key in the ledger."""
        return self.stored.writer_id

    @property
    def positions(self) -> Offsets:
        """Where the partitions that the query reads stood when the run began, or was recorded last."""
        return _only(self.stored.positions, self.ends)

    def begin(self, last_batch_id: int | None, known: Offsets, start: Offsets, kafka: Brokers | None) -> None:
        """
        Become the owner, at the positions that are stored then, or at ``start`` where that is further.

        :param last_batch_id: of the writer, if the ledger knows it.
        :param known: what is stored of the partitions in ``start``, as far as that is known before.
        :raises PgonceError: as a commit does; nothing has changed then.
        """
        self.batch_id = 0 if last_batch_id is None else last_batch_id + 1
        found: list[RunPositions] = []

        def set_positions(connection: Connection, batch: Batch, below: Offsets | None) -> None:
            driver = driver_connection(connection)
            found.append(begin_in_tx(driver, batch.query_id, batch.sink_name, batch.run_id, below, start))

        batch = with_topic_ids(self._batch(known, start), kafka, self.settings.url)
        commit_batch(self.settings, batch, self._work(set_positions))
        self.stored = found[-1]
        # A topic that is not read any more keeps its positions, for the time when it is read again.
        self.ends = _only(self.stored.positions, start)

    def record(self, known: Mapping[TopicPartition, int], ends: Offsets) -> None:
        """
        Record that the query has come to ``ends``: all records below are in the table, or were filtered.

        What is recorded never goes beyond what is stored, because a start counts it as stored.

        :param known: where the tasks have left each partition, as far as they have reported it.
        :raises PgonceError: as a commit does; FENCED if another run has taken over; POSITION_WENT_BACK.
        """
        before = self.stored
        with connect(self.settings.url) as connection:
            now = advance(connection, self.run_id, before, known, ends)
        end = furthest(self.ends, _lesser(ends, now.positions))
        least = {(topic, partition): at for _, topic, partition, at in kafka_positions(end)}

        def check(connection: Connection, _: Batch, __: Offsets | None) -> None:
            refuse_less(positions_of(driver_connection(connection), self.writer_id).positions, least)

        self.batch_id += 1
        try:
            # The rows are there already; the record says how many.
            batch = self._batch(self.ends, end)
            commit_batch(self.settings, batch, self._work(check, now.rows - before.rows))
        except PgonceError:
            self.batch_id -= 1
            raise
        self.stored, self.ends = now, end

    def _batch(self, start: Offsets, end: Offsets) -> PlannedBatch:
        return PlannedBatch(
            query_id=self.query_id,
            run_id=self.run_id,
            batch_id=self.batch_id,
            start=start,
            end=end,
            span=Span({}, end),
            stateful=False,
            query_name=self.query_name,
            checkpoint_location=self.checkpoint_location,
        )

    def _work(self, then: Callable[[Connection, Batch, Offsets | None], None], rows: int = 0) -> Work[Batch]:
        writes = work_into(self.sink_name, self.destination, Rows(self.columns, lambda: 0, transport=TRANSPORT))

        def publish(connection: Connection, batch: Batch, below: Offsets | None) -> Published:
            # No row is written, but the table is locked, looked at and created as for every batch.
            published = writes.publish(connection, batch, None)
            then(connection, batch, below)
            return replace(published, rows=rows)

        return Work(writes.name_sink, publish, leaves=True)


def _only(positions: Offsets, wanted: Offsets) -> Offsets:
    """The positions of the places that ``wanted`` has."""
    there = places(wanted)
    found: Offsets = {}
    for (source_id, topic, partition), at in places(positions).items():
        if (source_id, topic, partition) in there:
            found.setdefault(source_id, {}).setdefault(topic, {})[partition] = at
    return found


def _lesser(ends: Offsets, stored: Offsets) -> Offsets:
    """The lesser position of each place that both have."""
    there = places(stored)
    found: Offsets = {}
    for (source_id, topic, partition), at in places(_only(ends, stored)).items():
        lesser = min(at, there[source_id, topic, partition])
        found.setdefault(source_id, {}).setdefault(topic, {})[partition] = lesser
    return found
