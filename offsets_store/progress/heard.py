"""
Read Spark's progress events, and compare them with the ledger.

Pure: runs on the driver, in the listener's thread. Invariant: offsets are compared as parsed JSON, and what only one
side knows is not a disagreement.

Spark's events list the sources in the order of the plan, without their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..offsets import Offsets, is_kafka, parse_offset, places, same_json
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

    @property
    def lag(self) -> int | None:
        """How many records lay in the Kafka sources when the batch was planned, and were left there."""
        return left_by(self.end_offsets, self.latest_offsets)


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
        # Python 3.10 does not read the Z.
        progress_at=datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00")),
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


def left_by(end: Offsets, latest: Offsets) -> int | None:
    """
    How many records of Kafka are from ``end`` to ``latest``; None if any source or partition lacks one of them.

    >>> left_by({"0": {"orders": {"0": 5, "1": 7}}}, {"0": {"orders": {"0": 8, "1": 7}}})
    3
    """
    if not end or not all(is_kafka(offset) for offset in (*end.values(), *latest.values())):
        return None
    begins, ends = places(end), places(latest)
    # An end before the begin means that a topic was created again.
    if begins.keys() != ends.keys() or any(ends[place] < begins[place] for place in begins):
        return None
    return sum(ends[place] - begins[place] for place in begins)


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
        elif recorded.end is not None and not _same_ends(recorded.end, heard.end_offsets):
            found.append(
                f"batch {heard.batch_id} ended at {heard.end_offsets} according to Spark, and at {recorded.end} as "
                f"recorded for sink {writer.sink_name!r}"
            )
    return "; ".join(found) or None


def _same_ends(recorded: Offsets, told: Offsets) -> bool:
    if recorded.keys() == told.keys():
        return same_json(recorded, told)
    # With named sources, the event has the same offsets in another order and without the names. Of a source that the
    # plan reads twice, it has one, and the entry may have two.
    return _are_among(recorded, told) and _are_among(told, recorded)


def _are_among(some: Offsets, others: Offsets) -> bool:
    return all(any(same_json(offset, other) for other in others.values()) for offset in some.values())
