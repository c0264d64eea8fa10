"""
Which settings do PostgresBatchWriter and transactional_batch share, and which batch do they then see?

Runs on the driver, or in the worker of a Connect server. Invariant: settings that cannot work are refused when they are
made; nothing of them changes while the query runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pgonce.offsets_store.commit.settings import CommitSettings, commit_settings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.kafka.settings import Brokers, brokers
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl
from pgonce.offsets_store.verdict.facts import PlannedBatch, Remedies

from ..identity.from_server import as_long_as_planned, batch_from_server
from ..identity.planned_batch import with_topic_ids
from ..identity.server_session import ServerSession, is_connect
from ..options.hints import column_names
from ..options.position_columns import PositionColumns, position_columns


@dataclass(frozen=True)
class BatchSettings:
    """
    How a batch is committed, which columns hold its rows' positions, and which brokers know its topics.

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
            :func:`pgonce.sink.identity.from_server.batch_from_server` and
            :func:`pgonce.sink.identity.planned_batch.with_topic_ids`.
        """
        by_position = self.positions is not None
        if is_connect(frame):
            batch = batch_from_server(self.server, frame, batch_id, by_position=by_position)
        else:
            # Needs a JVM in this process, which a client of a Connect server lacks.
            from ..identity.from_running_query import batch_of

            batch = batch_of(frame, batch_id, by_position=by_position)
        return with_topic_ids(batch, self.brokers)

    def checked(self, frame: DataFrame, work: Work) -> Work:
        """The work of a batch, as it is to be committed."""
        return as_long_as_planned(self.server, work) if is_connect(frame) else work


def batch_settings(
    url: str,
    *,
    password_from: str | None,
    pin_table: bool,
    positions: Sequence[str],
    bootstrap_servers: str | None,
    kafka_options: Mapping[str, str] | None,
    notify_channel: str | None,
    retain_batches: int,
    adopt_checkpoint: int | None,
    replaces: str | None,
    independent: bool,
    lock_timeout: float,
    retry_timeout: float,
    write_positions: bool = True,
    start_over: bool = False,
    checkpoint_location: str | None = None,
) -> BatchSettings:
    """
    Checked :class:`BatchSettings`, from the arguments that both ways in through ``foreachBatch`` have.

    :raises ConfigurationError: for arguments that cannot work.
    """
    commit = commit_settings(
        PostgresUrl(url, password_from),
        Remedies(adopt_checkpoint, replaces, independent, start_over),
        retain_batches=retain_batches,
        lock_timeout=lock_timeout,
        retry_timeout=retry_timeout,
        pin_table=pin_table,
        notify_channel=notify_channel,
    )
    kafka, server = brokers(bootstrap_servers, kafka_options), ServerSession(checkpoint_location)
    if not positions:
        return BatchSettings(commit, None, kafka, server)
    names = column_names("position_columns", positions)
    return BatchSettings(commit, position_columns(names, written=write_positions), kafka, server)
