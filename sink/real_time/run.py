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
from pgonce.offsets_store.ledger.positions import RunPositions, TopicPartition, advance_in_tx, begin_in_tx
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.offsets import Offsets, Span
from pgonce.offsets_store.postgres.connect import driver_connection
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
    positions: Offsets = field(default_factory=dict)
    writer_id: int = 0
    written: int = 0

    def begin(self, last_batch_id: int | None, start: Offsets, kafka: Brokers) -> None:
        """
        Become the owner, at the positions that are stored then, or at ``start`` where nothing is stored.

        :param last_batch_id: of the writer, if the ledger knows it.
        :raises PgonceError: as a commit does; nothing has changed then.
        """
        self.batch_id = 0 if last_batch_id is None else last_batch_id + 1
        found: list[RunPositions] = []

        def set_positions(connection: Connection, batch: Batch, below: Offsets | None) -> None:
            found.append(
                begin_in_tx(
                    driver_connection(connection), batch.query_id, batch.sink_name, batch.run_id, below, batch.start
                )
            )

        commit_batch(
            self.settings,
            with_topic_ids(self._batch(start, start), kafka, self.settings.url),
            self._work(set_positions),
        )
        self._take(found[-1])
        self.ends = self.positions

    def record(self, known: Mapping[TopicPartition, int], ends: Offsets) -> None:
        """
        Record that the query has come to ``ends``: all records below are in the table, or were filtered.

        :param known: where the tasks have left each partition, as far as they have reported it.
        :raises PgonceError: as a commit does; FENCED if another run has taken over.
        """
        found: list[RunPositions] = []

        def advance(connection: Connection, _: Batch, __: Offsets | None) -> None:
            found.append(advance_in_tx(driver_connection(connection), self.writer_id, known, ends))

        self.batch_id += 1
        # The rows are there already; the record says how many.
        work = self._work(advance, lambda: found[-1].rows - self.written)
        try:
            commit_batch(self.settings, self._batch(self.ends, ends), work)
        except PgonceError:
            self.batch_id -= 1
            raise
        self._take(found[-1])
        self.ends = ends

    def _take(self, now: RunPositions) -> None:
        self.positions, self.writer_id, self.written = now.positions, now.writer_id, now.rows

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

    def _work(
        self, then: Callable[[Connection, Batch, Offsets | None], None], count: Callable[[], int] = lambda: 0
    ) -> Work[Batch]:
        writes = work_into(self.sink_name, self.destination, Rows(self.columns, lambda: 0, transport=TRANSPORT))

        def publish(connection: Connection, batch: Batch, below: Offsets | None) -> Published:
            published = writes.publish(connection, batch, None)
            then(connection, batch, below)
            # No row is written by it.
            return replace(published, rows=count())

        return Work(writes.name_sink, publish, leaves=True)
