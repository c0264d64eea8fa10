"""
Read a progress event, compare it with the ledger, and store it there.

Runs in the listener's thread. Invariant: offsets are compared as parsed JSON, and what only one side knows is not a
disagreement. Nothing here waits for a commit: the writer's row is changed only if no session holds it, and no batch id
and no owner ever moves.

Spark's events list the sources in the order of the plan, without their ids.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, delete, desc, func, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert

from ..ledger.record import is_pruned_at
from ..ledger.tables import batches, progress, writers
from ..ledger.writers import records_in_tx, writers_in_tx
from ..offsets import Offsets, parse_offset, same_json
from ..postgres.bounds import server_settings
from ..postgres.connect import driver_connection
from ..postgres.settings import OURS
from ..verdict.facts import Recorded, Writer


@dataclass(frozen=True)
class Heard:
    """One progress event; offsets map a source's position in the plan (``"0"``, ``"1"``) to its parsed offset."""

    query_id: str
    run_id: str
    batch_id: int
    query_name: str | None
    progress_at: datetime
    num_input_rows: int
    start_offsets: Offsets
    end_offsets: Offsets
    latest_offsets: Offsets
    durations_ms: dict[str, int]


def parse_progress(progress: Any) -> Heard:
    """
    Read a ``pyspark`` StreamingQueryProgress, of a classic session or of Spark Connect.

    :raises Exception: of any kind, if Spark's form is not the known one.
    """
    sources = progress.sources
    return Heard(
        query_id=str(progress.id),
        run_id=str(progress.runId),
        batch_id=progress.batchId,
        query_name=progress.name,
        progress_at=datetime.fromisoformat(progress.timestamp),
        num_input_rows=progress.numInputRows,
        start_offsets=_offsets(sources, "startOffset"),
        end_offsets=_offsets(sources, "endOffset"),
        latest_offsets=_offsets(sources, "latestOffset"),
        durations_ms=dict(progress.durationMs),
    )


def _offsets(sources: Sequence[Mapping[str, Any]], which: str) -> Offsets:
    return {str(position): _offset(source, which) for position, source in enumerate(sources)}


def _offset(source: Mapping[str, Any], which: str) -> Any:
    # Connect gives decoded JSON, and PySpark 4.1 makes Python's repr of it; the dict in _jdict still has the JSON.
    decoded = getattr(source, "_jdict", None) or source
    offset = decoded.get(which)
    # A missing offset is "None" on a classic session (the text of a Java null), and null over Connect.
    if not isinstance(offset, str) or offset in ("None", "null"):
        return None if isinstance(offset, str) else offset
    return parse_offset(offset)


def disagreement(heard: Heard, sinks: Sequence[tuple[Writer, Recorded | None]]) -> str | None:
    """
    The text for what differs between the event and the ledger; None if nothing does.

    A query without any sink in the ledger writes elsewhere. A sink that has no record of the batch is at fault only if
    this run has published to it before, and its last batch is an earlier one.

    :param sinks: each writer of the query, with its record of the batch that the event is about.
    """
    found = []
    for writer, recorded in sinks:
        if recorded is None:
            if writer.run_id == heard.run_id and writer.last_batch_id < heard.batch_id:
                found.append(
                    f"Spark has finished batch {heard.batch_id}, but the last one in sink {writer.sink_name!r} is "
                    f"{writer.last_batch_id}"
                )
        elif (end := _recorded_end(recorded)) is not None and not _same_ends(end, heard.end_offsets):
            found.append(
                f"batch {heard.batch_id} ended at {heard.end_offsets} according to Spark, and at {end} as "
                f"recorded for sink {writer.sink_name!r}"
            )
    return "; ".join(found) or None


def _recorded_end(recorded: Recorded) -> Offsets | None:
    # If only the rows told it, it is a lower bound.
    told_by_rows = recorded.positions is not None and recorded.offset_log is None
    return None if told_by_rows else recorded.end


def _same_ends(recorded: Offsets, told: Offsets) -> bool:
    if recorded.keys() == told.keys():
        return same_json(recorded, told)
    # With named sources, the event has the same offsets in another order and without the names.
    left = list(told.values())
    for offset in recorded.values():
        match = next((index for index, other in enumerate(left) if same_json(offset, other)), None)
        if match is None:
            return False
        del left[match]
    return not left


KEPT_A_QUERY = 1000


def store_progress_in_tx(connection: Connection, heard: Heard) -> str | None:
    """
    Store one event, and fill in offsets that are unknown otherwise; return the text for what disagrees with the ledger.
    """
    # With two listeners on one query, or another session's lock on these tables, transactions must not pile up.
    limits = (("lock_timeout", "2000"), ("statement_timeout", "10000"))
    settings = (*OURS.items(), *limits, *server_settings(driver_connection(connection)).items())
    connection.execute(select(*(func.pg_catalog.set_config(name, value, True) for name, value in settings)))
    found = disagreement(heard, _sinks_in_tx(connection, heard))
    row: dict[str, Any] = {**dataclasses.asdict(heard), "disagreement": found}
    connection.execute(
        insert(progress)
        .values(row)
        .on_conflict_do_update(
            index_elements=["query_id", "run_id", "batch_id"],
            set_={**row, "received_at": func.clock_timestamp()},
        )
    )
    if is_pruned_at(heard.batch_id):
        _prune_in_tx(connection, heard.query_id)
    if found is None:
        # Last, because it is the only thing that a commit could have to wait for.
        _fill_in_tx(connection, heard)
    return found


def _sinks_in_tx(connection: Connection, heard: Heard) -> list[tuple[Writer, Recorded | None]]:
    """Each writer of the query, with its record of the event's batch."""
    found = []
    for writer in writers_in_tx(connection, writers.c.query_id == heard.query_id):
        records = records_in_tx(connection, writer, batches.c.batch_id == heard.batch_id)
        found.append((writer, records.get(heard.batch_id)))
    return found


def _fill_in_tx(connection: Connection, heard: Heard) -> None:
    """
    Give a batch that is judged by ids alone the offsets of the event, if this run has published it.

    If the next commit holds the writer's row, the row stays as it is: readers look at the batch's record too.
    """
    connection.execute(
        update(batches)
        .where(
            batches.c.writer_id == writers.c.writer_id,
            batches.c.generation == writers.c.generation,
            writers.c.query_id == heard.query_id,
            writers.c.guarantee == "ids",
            batches.c.batch_id == heard.batch_id,
            batches.c.run_id == heard.run_id,
            batches.c.end_offsets.is_(None),
        )
        .values(start_offsets=heard.start_offsets, end_offsets=heard.end_offsets)
    )
    free = (
        select(writers.c.writer_id)
        .where(
            writers.c.query_id == heard.query_id,
            writers.c.guarantee == "ids",
            writers.c.last_batch_id == heard.batch_id,
            writers.c.run_id == heard.run_id,
            writers.c.end_offsets.is_(None),
        )
        .with_for_update(skip_locked=True)
    )
    connection.execute(update(writers).where(writers.c.writer_id.in_(free)).values(end_offsets=heard.end_offsets))


def _prune_in_tx(connection: Connection, query_id: str) -> None:
    key = tuple_(progress.c.run_id, progress.c.batch_id)
    old = (
        select(progress.c.run_id, progress.c.batch_id)
        .where(progress.c.query_id == query_id)
        .order_by(desc(progress.c.progress_at), desc(progress.c.batch_id))
        .offset(KEPT_A_QUERY)
    )
    connection.execute(delete(progress).where(progress.c.query_id == query_id, key.in_(old)))
