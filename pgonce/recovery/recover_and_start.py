"""
One call that repairs a query's checkpoint if it has to, and starts the query.

Runs on the driver, in the caller's thread. Invariant: a checkpoint is repaired before Spark reads it, and a query that
Spark would run without delivering rows does not stay started.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pgonce.offsets_store.commit.settings import RETRY_SECONDS
from pgonce.offsets_store.errors import NOTHING, RecoveryError, UnknownQueryError
from pgonce.offsets_store.log_lines import in_command
from pgonce.recovery.fence import QUIET_SECONDS
from pgonce.recovery.plan import MAY_DOUBLE
from pgonce.recovery.recover import Recovery, recover_checkpoint
from pgonce.sink.errors import SparkError

# Spark allows asynchronous progress tracking only for sinks that it knows. This internal option of Spark's lifts that.
_LET_ANY_SINK = "_asyncProgressTrackingOverrideSinkSupportCheck"


def recover_and_start(
    writer: DataStreamWriter,
    checkpoint_location: str,
    url: str = "",
    *,
    quiet_seconds: float = QUIET_SECONDS,
    retry_timeout: float = RETRY_SECONDS,
) -> StreamingQuery:
    """
    Start a query whose sink is pgonce; in foreachBatch also with asynchronous progress tracking, if options ask for it.

    After a restart Spark may run batches again whose entries it never wrote down. So the checkpoint is first made to
    agree with the ledger (:func:`recover_checkpoint`); if the two agree already, nothing is touched.

    :param writer: the writer, before ``start()``, without a ``checkpointLocation``.
    :param checkpoint_location: as Spark takes it.
    :param url: where the ledger is; a libpq URI or key=value string, empty for libpq's environment.
    :param quiet_seconds: how long the checkpoint and the ledger must have been unchanged, if files must be changed.
    :param retry_timeout: seconds to wait while Postgres is unavailable, as a commit does.
    :raises RecoveryError: if the checkpoint cannot be repaired, or not in this application; if a repair may write rows
        twice, which people decide (RECOVERY_MAY_DOUBLE); or if the query is running.
    :raises SparkError: NOT_MICRO_BATCH, for the continuous trigger.
    """
    # A query that wrote elsewhere before: the sink judges adoptCheckpoint, at the first batch.
    with suppress(UnknownQueryError):
        recover_checkpoint(
            checkpoint_location,
            url,
            quiet_seconds=quiet_seconds,
            retry_timeout=retry_timeout,
            approve=_refuse_what_people_decide,
        )
    options = {"checkpointLocation": checkpoint_location, _LET_ANY_SINK: "true"}
    query = writer.options(**options).start()
    _stop_if_continuous(query)
    return query


def _refuse_what_people_decide(planned: Recovery) -> None:
    command = f"`pgonce recover {in_command(planned.location, 'CHECKPOINT')} --yes`"
    # After a failover and after a return from another function, ledger and checkpoint look the same.
    if planned.may_double:
        raise RecoveryError(
            "RECOVERY_MAY_DOUBLE",
            f"A recovery of the checkpoint {planned.location} {planned.does}. {MAY_DOUBLE}",
            NOTHING,
            f"If the database lost these batches, run {command}, or call recover_checkpoint; then start it again.",
        )
    if planned.needs_new_application:
        raise RecoveryError(
            "RECOVERY_STATEFUL",
            f"A recovery of the stateful query's checkpoint {planned.location} {planned.does}, but executors of this "
            "Spark application may still write state of the batch that was refused.",
            NOTHING,
            f"End this application, run {command}, and start the query in a new one.",
        )


def _stop_if_continuous(query: StreamingQuery) -> None:
    wrapped: Any = getattr(query, "_jsq", None)
    if wrapped is None or wrapped.streamingQuery().getClass().getSimpleName() != "ContinuousExecution":
        return
    query.stop()
    raise SparkError.usual(
        "NOT_MICRO_BATCH",
        "The query was started with the continuous trigger, under which Spark drops every row of a Python sink.",
        "Use a micro-batch trigger: .trigger(processingTime='1 second') or availableNow=True.",
    )
