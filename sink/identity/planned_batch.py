"""
Which batch do these rows belong to, and where are they staged?

Runs in tasks, in the commit worker and in the receiver. Invariant: both follow from the origin that the rows brought
and from the options; nothing is remembered.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from pgonce.offsets_store.verdict.facts import PlannedBatch

from ..options.job_options import JobOptions
from ..options.sink_options import SinkOptions
from ..positions import Reach
from ..staging.table import StagingTable
from .from_checkpoint import batch_by_id, batch_from_checkpoint
from .origin import Origin
from .topic_ids import with_topic_ids


def planned_batch(
    options: SinkOptions, origin: Origin, reaches: Iterable[Reach] | None = None, attempt: UUID | None = None
) -> PlannedBatch:
    """
    The batch that ``origin`` names, as the checkpoint describes it.

    :param reaches: how far the rows of each task reach, if they carry their positions.
    :param attempt: the attempt's token, if it has one already; None makes one.
    :raises PgonceError: as :func:`pgonce.sink.identity.from_checkpoint.batch_from_checkpoint` and
        :func:`pgonce.sink.identity.topic_ids.with_topic_ids`.
    """
    if options.offsets_from == "checkpoint":
        return with_topic_ids(batch_from_checkpoint(options, origin, reaches, attempt), options.brokers)
    return batch_by_id(origin, options.query_name, options.checkpoint_location, attempt)


def staging_table(options: SinkOptions | JobOptions, origin: Origin) -> StagingTable:
    """The staging table of a batch of this sink, or of one run of a batch job."""
    return StagingTable(origin.query_id, options.sink_label, origin.run_id, origin.batch_id, origin.planned_by_ms)
