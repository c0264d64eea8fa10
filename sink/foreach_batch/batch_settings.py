"""
Which settings do PostgresBatchWriter and transactional_batch share, and which batch do they then see?

Runs on the driver. Invariant: settings that cannot work are refused when they are made; nothing of them changes while
the query runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from pgonce.offsets_store.commit.settings import CommitSettings, commit_settings
from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.verdict.facts import PlannedBatch, Remedies
from pgonce.sink.identity.from_running_query import batch_of
from pgonce.sink.identity.topic_ids import with_topic_ids
from pgonce.sink.option_hints import column_names
from pgonce.sink.positions.columns import PositionColumns, position_columns


@dataclass(frozen=True)
class BatchSettings:
    """How a batch is committed, which columns hold its rows' positions, and which brokers know its topics."""

    commit: CommitSettings
    positions: PositionColumns | None
    bootstrap_servers: str | None

    def batch_of(self, frame: DataFrame, batch_id: int) -> PlannedBatch:
        """
        The batch of this frame, as the running query describes it.

        :raises PgonceError: as :func:`pgonce.sink.identity.from_running_query.batch_of` and
            :func:`pgonce.sink.identity.topic_ids.with_topic_ids`.
        """
        batch = batch_of(frame, batch_id, by_position=self.positions is not None)
        return with_topic_ids(batch, self.bootstrap_servers)


def batch_settings(
    url: str,
    *,
    pin_table: bool,
    positions: Sequence[str],
    bootstrap_servers: str | None,
    retain_batches: int,
    adopt_checkpoint: int | None,
    replaces: str | None,
    independent: bool,
    lock_timeout: float,
    retry_timeout: float,
    write_positions: bool = True,
    start_over: str | None = None,
) -> BatchSettings:
    """
    Checked :class:`BatchSettings`, from the arguments that both ways in through ``foreachBatch`` have.

    :raises ConfigurationError: for arguments that cannot work.
    """
    if start_over not in (None, "truncate"):
        raise bad_option("BAD_OPTION", f"start_over={start_over!r} is not allowed.", 'Use "truncate", or leave it out.')
    commit = commit_settings(
        url,
        Remedies(adopt_checkpoint, replaces, independent, start_over is not None),
        retain_batches=retain_batches,
        lock_timeout=lock_timeout,
        retry_timeout=retry_timeout,
        pin_table=pin_table,
    )
    if not positions:
        return BatchSettings(commit, None, bootstrap_servers)
    names = column_names("position_columns", positions)
    return BatchSettings(commit, position_columns(names, written=write_positions), bootstrap_servers)
