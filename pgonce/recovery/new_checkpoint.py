"""
Write a checkpoint from the ledger for a query that has lost its own: the same query id, at the batch of the ledger.

Runs in the command ``pgonce new-checkpoint``. Invariant: it is planned as a recovery of a checkpoint without
any entry is, so it is judged before it is written. It is written only to a place that is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log, query_id_text
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import RecoveryError
from pgonce.offsets_store.ledger.session import reading

from .fence import QUIET_SECONDS, StoppedQuery, take_over
from .plan import Plan, plan_to_the_ledger
from .read_stopped_query import named_sinks
from .recover import Recovery, recovered
from .stopped_query import (
    NEW_START,
    Change,
    CheckpointFacts,
    SinkFacts,
    living_sinks,
    newest_of,
    proven_text,
    refuse_ids_alone,
    unproven,
)


def write_new_checkpoint(
    query: str,
    path: str,
    url: str = "",
    *,
    dry_run: bool = False,
    quiet_seconds: float = QUIET_SECONDS,
    wait_seconds: float = 0,
) -> Recovery:
    """
    Write a checkpoint for ``query`` (its id or name) to ``path``, which must be empty.

    :raises RecoveryError: PATH_NOT_EMPTY; QUERY_RUNNING; or where the ledger does not prove what to write.
    :raises OffsetsError: if no query, or several, have that name.
    """

    def once() -> Recovery:
        with reading(url) as connection:
            found, sinks = named_sinks(connection, query)
        query_id = found[0].query_id
        writer = CheckpointWriter(path)
        plan = plan_new_checkpoint(query_id, sinks)
        names = tuple(name for name, _ in plan.changes)
        written = Recovery(writer.location, query_id, plan.does, plan.stands_at, names, is_done=not dry_run)
        if not writer.is_empty():
            raise RecoveryError.usual(
                "PATH_NOT_EMPTY",
                f"{writer.location} is not empty.",
                "Give a path where there is nothing yet. If a checkpoint is there that does not agree with the ledger, "
                "`pgonce recover` repairs it.",
            )
        if not dry_run:
            stopped = StoppedQuery(url, query_id, sinks, quiet_seconds, wait_seconds)
            take_over(stopped, "new-checkpoint", plan.stands_at, {"location": writer.location, "files": names})
            for name, text in plan.changes:
                writer.put(name, (text or "").encode())
        return written

    return recovered(once, query, wait_seconds)


def plan_new_checkpoint(query_id: str, sinks: Sequence[SinkFacts]) -> Plan:
    """
    What to write, by what the ledger knows.

    :raises RecoveryError: if that is not enough.
    """
    empty = CheckpointFacts(f"of query {query_id}", query_id, {}, {}, frozenset(), {}, {}, is_stateful=False)
    living = living_sinks(empty, sinks)
    # First: for a query that is judged by ids, it is not recorded whether it keeps state.
    refuse_ids_alone(living)
    if any(sink.stateful is not False for sink in living):
        raise RecoveryError.usual(
            "RECOVERY_STATEFUL",
            f"Query {query_id} keeps state, or its batches (of older versions) did not record that it keeps none.",
            f"State cannot be made from the ledger: {NEW_START}.",
        )
    newest, ahead, _ = newest_of(living)
    offsets = parse_offset_log(proven_text(ahead, newest)).offsets
    if lacking := [source_id for source_id, offset in offsets.items() if offset is None]:
        raise unproven(f"Source {lacking[0]} has no offset yet, and would begin again, perhaps elsewhere.")
    plan = plan_to_the_ledger(empty, living)
    # First, because without it an older Spark would begin a new query. (A start from it alone would be refused.)
    return replace(plan, changes=(Change("metadata", query_id_text(query_id)), *plan.changes))
