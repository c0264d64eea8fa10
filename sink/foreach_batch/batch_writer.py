"""
``foreachBatch`` made exactly-once, for one table, or for several among which each row chooses.

Runs on the driver, in the thread that calls the function, or in the worker of a Connect server. Invariant: the batch's
identity and offsets come from the running query itself, never from what the caller passes or the function remembers.
Settings that cannot work are refused when they are made; nothing of them changes while the query runs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame
from pyspark.sql.utils import is_remote

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.kafka.settings import Brokers, brokers
from pgonce.offsets_store.ledger.failures import Failed, failures_kept
from pgonce.offsets_store.offsets import Offsets, Span
from pgonce.offsets_store.verdict.facts import Batch, PlannedBatch

from ..border import called_by_spark
from ..encoding.encoded_types import encoded_columns
from ..identity.from_checkpoint import refuse_without_positions
from ..identity.from_server import ServerSession, as_long_as_planned, batch_from_server, is_connect
from ..identity.planned_batch import with_topic_ids
from ..options.position_columns import PositionColumns, positions_of, written_type
from ..options.reading import Given
from ..options.routes import where_of
from ..options.sink_options import commit_settings_of
from ..read_rows import RowReader, reader_of
from ..writing.first_look import look_once, refuse_first_batch
from ..writing.rooms import Rooms
from ..writing.write_batch import work_into
from .frame_rows import arriving_rows


@dataclass(frozen=True)
class BatchSettings:
    """
    What both ways in through ``foreachBatch`` need.

    That is how a batch is committed, which columns hold its rows' positions, and which brokers know its topics;
    ``server`` tells what the running query cannot be asked over Spark Connect.
    """

    commit: CommitSettings
    positions: PositionColumns | None
    brokers: Brokers | None
    server: ServerSession

    def batch_of(self, frame: DataFrame, batch_id: int) -> PlannedBatch:
        """
        The batch of this frame, as the running query describes it, or the Connect server and the checkpoint.

        :raises PgonceError: as :func:`pgonce.sink.identity.from_running_query.batch_of`,
            :func:`pgonce.sink.identity.from_server.batch_from_server`,
            :func:`pgonce.sink.identity.from_checkpoint.refuse_without_positions` and
            :func:`pgonce.sink.identity.planned_batch.with_topic_ids`.
        """
        if is_connect(frame):
            batch = batch_from_server(self.server, frame, batch_id)
        else:
            # Needs a JVM in this process, which a client of a Connect server lacks.
            from ..identity.from_running_query import batch_of

            batch = batch_of(frame, batch_id)
        if self.positions is not None:
            # The rows' positions are in the range that the query planned.
            refuse_without_positions(batch)
            batch = replace(batch, span=span_of_range(batch.start, batch.end))
        return with_topic_ids(batch, self.brokers)

    def failures_kept(self, batch: PlannedBatch, sink_name: str | None) -> AbstractContextManager[None]:
        """Around all that is done for a batch once it is known: an error of ours is kept."""
        failed = Failed("commit", batch.query_id, batch.query_name, sink_name, batch.run_id, batch.batch_id)
        return failures_kept(self.commit.url, failed)

    def checked(self, frame: DataFrame, work: Work[Batch]) -> Work[Batch]:
        """The work of a batch, as it is to be committed."""
        return as_long_as_planned(self.server, work) if is_connect(frame) else work


def batch_settings_of(given: Given) -> BatchSettings:
    """:raises ConfigurationError: for options that cannot work."""
    return BatchSettings(
        commit_settings_of(given),
        positions_of(given),
        brokers(given["bootstrap_servers"], given["kafka_options"]),
        ServerSession(given["checkpoint_location"]),
    )


def span_of_range(start: Offsets | None, end: Offsets | None) -> Span:
    """
    Where the rows of a range of Kafka's lie.

    A partition that is not in the start is new to this run, but an earlier one may have stored rows of it.
    """
    known, after = start or {}, end or {}
    first = {
        source: {
            topic: {**dict.fromkeys(partitions, 0), **known.get(source, {}).get(topic, {})}
            for topic, partitions in topics.items()
        }
        for source, topics in after.items()
    }
    return Span(first, after)


class BatchWriter:
    """
    Writes every batch that ``foreachBatch`` brings, as the options say.

    :raises ConfigurationError: for options that cannot work.
    :raises TargetError: for a table that is missing or cannot be written into, if the database can be asked now.
    """

    def __init__(self, given: Given, rooms: Rooms) -> None:
        self._rooms = rooms
        self._settings = batch_settings_of(given)
        self._destination = where_of(given)
        self._sink_name = given["sink_name"]
        # A client of a Connect server may have another database by this url, or none.
        if "checkpoint_location" not in given and not is_remote():
            # A server that is not there, or a login that is refused, is left to the first batch.
            url = self._settings.commit.url
            look_once(None, url, self._destination, None, rooms=rooms, at_the_door=False)

    @called_by_spark
    def __call__(self, frame: DataFrame, batch_id: int) -> None:
        """Publish one batch, or skip it if it is proven to be published already; foreachBatch calls this."""
        batch = self._settings.batch_of(frame, batch_id)
        with self._settings.failures_kept(batch, self._sink_name):
            where, positions = self._destination, self._settings.positions
            reader = reader_of(where, frame.schema, self._rooms, self._settings.commit)
            self._look_first(batch, reader)
            # The frame is run to its end even for a replay: a stateful query fails if its frame is not run.
            with arriving_rows(frame, reader, where, positions, batch) as rows:
                work = work_into(self._sink_name, self._destination, rows, rooms=self._rooms)
                commit_batch(self._settings.commit, batch, self._settings.checked(frame, work))
                rows.count()

    def _look_first(self, batch: PlannedBatch, reader: RowReader) -> None:
        positions, struct_type = self._settings.positions, reader.struct_type
        if positions:
            positions.check(struct_type)
        written = written_type(struct_type, positions, self._destination)
        columns, url = encoded_columns(written), self._settings.commit.url
        look_once(batch.run_id, url, self._destination, columns, rooms=self._rooms)
        refuse_first_batch(self._settings.commit, batch, self._sink_name, self._destination)
