"""
Begin a run of a real-time or continuous query in the ledger, and record what it has done while it runs.

Runs on the driver. Invariant: a run begins with a batch without rows, which is judged and committed as every batch is:
from then on it is the owner, no task of an older run can write, and the positions are those at which it begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

import psycopg
from sqlalchemy import Connection

from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError, RefusedBatch
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.ledger.failures import Failed, SeenBy
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.offsets import Offsets, Span, TopicPartition, by_partition, furthest, least_common, only
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch
from pgonce.offsets_store.verdict.refused_batch import ANOTHER_TOPIC
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.identity.planned_batch import with_topic_ids
from pgonce.sink.options.destination import Destination
from pgonce.sink.writing.checked_table import plan_columns, without_extra
from pgonce.sink.writing.rows import Rows
from pgonce.sink.writing.table.catalogue import look_up_table
from pgonce.sink.writing.write_batch import work_into

from .positions import (
    RunPositions,
    advance,
    begin_in_tx,
    positions_of,
    refuse_less,
)
from .statements import flush_statement

TRANSPORT = "real-time"


def flush_of(connection: psycopg.Connection, destination: Destination, columns: Sequence[EncodedColumn]) -> str:
    """The statement that writes rows, for the table as it is in this transaction, which has written a batch to it."""
    _, table = look_up_table(connection, destination.table)
    if table is None:
        raise RuntimeError("the run's first batch has made the table")
    plan = plan_columns(table, without_extra(table, columns, destination), destination)
    return flush_statement(table, columns, plan).as_string(connection)


@dataclass
class Run:
    """
    One run: its identity, and the number of the last batch that it has recorded.

    ``columns`` are known when the rows are planned, before it begins. ``flush`` is the statement that writes rows into
    the table that it has found, ``tried`` what its last record, which failed, would have said, and ``topic_ids`` are
    Kafka's ids of the topics with which it began.
    """

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
    flush: str = ""
    tried: tuple[RunPositions, Offsets] | None = None
    topic_ids: dict[str, str] = field(default_factory=dict)

    @property
    def writer_id(self) -> int:
        """The writer's key in the ledger."""
        return self.stored.writer_id

    @property
    def positions(self) -> Offsets:
        """Where the partitions that the query reads stood when the run began, or was recorded last."""
        return only(self.stored.positions, self.ends)

    def begin(
        self,
        last_batch_id: int | None,
        known: Offsets,
        start: Offsets,
        kafka: Brokers | None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Become the owner, at the positions that are stored then, or at ``start`` where that is further.

        :param last_batch_id: of the writer, if the ledger knows it.
        :param known: what is stored of the partitions in ``start``, as far as that is known before.
        :param prepare: does what may still fail, when nothing refuses the run; again if the transaction is tried again.
        :raises PgonceError: as a commit does; nothing has changed then.
        """
        self.batch_id = 0 if last_batch_id is None else last_batch_id + 1
        found: list[RunPositions] = []

        def take_over(connection: Connection, batch: Batch, below: Offsets | None) -> None:
            driver = driver_connection(connection)
            found.append(begin_in_tx(driver, batch.query_id, batch.sink_name, batch.run_id, below, start))
            # In this transaction, so that nothing can fail when older runs have ended.
            self.flush = flush_of(driver, self.destination, self.columns)
            prepare()

        # Its span begins at what was known, so that what a query that is replaced has stored since is found.
        batch = replace(self._batch(known, start), span=Span(known, start))
        batch = with_topic_ids(batch, kafka)
        self.topic_ids = batch.topic_ids or {}
        commit_batch(self.settings, batch, self._work(take_over))
        while not found:
            # A driver that started at the same time has recorded this batch. This run is the later one, and takes over.
            self.batch_id += 1
            batch = replace(batch, batch_id=self.batch_id)
            commit_batch(self.settings, batch, self._work(take_over))
        self.stored = found[-1]
        # A topic that is not read any more keeps its positions, for the time when it is read again.
        self.ends = only(self.stored.positions, start)

    def record(self, known: Mapping[TopicPartition, int], ends: Offsets | None) -> None:
        """
        Record that the query has come to ``ends``: all records below are in the table, or were filtered.

        What is recorded never goes beyond what is stored, because a start counts it as stored.

        :param known: where the tasks have left each partition, as far as they have reported it.
        :param ends: where Spark's last batch has ended. None in continuous mode, where Spark does not say it: then as
            far as rows are stored. If that is recorded already, nothing is, and the ledger is only looked at.
        :raises PgonceError: as a commit does; FENCED if another run has taken over; POSITION_WENT_BACK.
        """
        with writing(self.settings.url) as connection:
            driver = driver_connection(connection)
            is_taken_over = self._find_tried(driver)
            before = self.stored
            # What has taken over may have taken the positions away; then the commit says so.
            now = before if is_taken_over else advance(driver, self.run_id, before, known, ends or {})
        has_news = now.rows != before.rows if ends is None else ends != self.ends
        if not (has_news or is_taken_over):
            return
        reached = self._of_topics_read(now.positions) if ends is None else least_common(ends, now.positions)
        end = furthest(self.ends, reached)
        least = by_partition(end)

        def check(connection: Connection, _: Batch, __: Offsets | None) -> None:
            refuse_less(positions_of(driver_connection(connection), self.writer_id).positions, least)

        self.batch_id += 1
        try:
            # The rows are there already; the record says how many.
            batch = self._batch(self.ends, end)
            commit_batch(self.settings, batch, self._work(check, now.rows - before.rows))
        except PgonceError:
            self.batch_id -= 1
            self.tried = now, end
            raise
        self.stored, self.ends = now, end

    def refuse_recreated(self, found: Mapping[str, str]) -> None:
        """
        Refuse to go on if a topic has another id than when the run began.

        :raises RefusedBatch: RECREATED.
        """
        others = [topic for topic, known in self.topic_ids.items() if found.get(topic, known) != known]
        if others:
            raise RefusedBatch(
                "RECREATED",
                f"Query {self.query_id} reads {', '.join(sorted(others))}, which was deleted and created again while "
                "it ran: records of the new topic below the old one's end were left out.",
                "Rows that are stored stay, and those of the new topic may be among them.",
                f"Find the new topic's rows in the table, by their positions or by hand. {ANOTHER_TOPIC}",
            )

    def _find_tried(self, connection: psycopg.Connection) -> bool:
        """
        Look whether the record that failed last was committed all the same: only its answer may have been lost.

        :return: whether another run has recorded a batch since.
        """
        find = "SELECT run_id, last_batch_id FROM pgonce.writers WHERE writer_id = %s"
        owner, last_batch_id = connection.execute(find, [self.writer_id]).fetchone() or (None, -1)
        if self.tried is not None and (owner, last_batch_id) == (self.run_id, self.batch_id + 1):
            self.batch_id += 1
            self.stored, self.ends = self.tried
        self.tried = None
        # In a database that went back to before this run, the owner is another one too, of an older batch.
        return owner != self.run_id and last_batch_id > self.batch_id

    def _of_topics_read(self, positions: Offsets) -> Offsets:
        """Without topics that the query does not read any more, but with partitions that have been added."""
        return {
            source: {topic: parts for topic, parts in positions[source].items() if topic in topics}
            for source, topics in self.ends.items()
        }

    def failed(self, seen_by: SeenBy, batch_id: int | None = None) -> Failed:
        """How a failure of this run is kept."""
        return Failed(seen_by, self.query_id, self.query_name, run_id=self.run_id, batch_id=batch_id)

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
            topic_ids=self.topic_ids,
        )

    def _work(self, then: Callable[[Connection, Batch, Offsets | None], None], rows: int = 0) -> Work[Batch]:
        none = Rows(self.columns, lambda: 0, transport=TRANSPORT)
        writes = work_into(self.sink_name, self.destination, none, rooms=EVERY_ROOM)

        def publish(connection: Connection, batch: Batch, below: Offsets | None) -> Published:
            # No row is written, but the table is locked, looked at and created as for every batch.
            published = writes.publish(connection, batch, None)
            then(connection, batch, below)
            return replace(published, rows=rows)

        return Work(writes.name_sink, publish, restores_path=True)
