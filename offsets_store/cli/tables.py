"""
How do the command line's answers look, to people and to programs?

Runs in the command ``pgonce``. Invariant: the keys of the JSON are stable; both forms show the same facts, and what
is unknown reads ``?`` in one and null in the other.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from rich.console import Console
from rich.table import Table

from pgonce.offsets_store.offsets.compare import Offsets, is_kafka
from pgonce.offsets_store.recovery.doctor import Diagnosis
from pgonce.offsets_store.recovery.first_contact import ANY_SINK
from pgonce.offsets_store.status.lag import total_lag
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredWriter

Status = tuple[StoredWriter, list[PartitionLag]]

_WIDTH_FOR_WHOLE_IDS = 100


def print_json(answer: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(answer, indent=2, default=_encode))  # noqa: T201 (this is the output)


def status_records(status: Iterable[Status]) -> list[dict[str, Any]]:
    """One object a writer."""
    return [
        {
            **dataclasses.asdict(writer),
            "lag": total_lag(lag),
            "lag_measured_at": lag[0].measured_at if lag else None,
        }
        for writer, lag in status
    ]


def status_table(status: Sequence[Status]) -> Table:
    """One row a writer."""
    table = _table("Query, id, owner", "Sink", "Last batch", "End offsets", "Lag", "Replays")
    for writer, lag in status:
        old = writer.replaced_by is not None or writer.retired_at is not None
        _add_row(
            table,
            _lines(
                writer.query_name or "-",
                writer.query_id,
                f"run {_text(writer.run_id)}",
                f"replaced by\n{writer.replaced_by}" if writer.replaced_by else "",
                f"retired {_time(writer.retired_at)}" if writer.retired_at else "",
            ),
            _lines(writer.sink_name, f"at {writer.target_change}" if writer.target_change else ""),
            _lines(
                _text(writer.batch_id),
                _time(writer.updated_at),
                "judged by ids (weaker)" if writer.guarantee == "ids" else "",
                f"{writer.disagreements} disagree" if writer.disagreements else "",
            ),
            _offsets(writer.end_offsets),
            _text(total_lag(lag)),
            str(writer.replays),
            style="dim" if old else None,
        )
    return table


def offsets_records(status: Iterable[Status]) -> list[dict[str, Any]]:
    """One object a writer; ``positions`` has one a topic and partition, or a source, with its lag."""
    return [
        {
            **{name: getattr(writer, name) for name in _OFFSETS_KEYS},
            "positions": [{key: getattr(row, key) for key in _POSITION_KEYS} for row in lag],
        }
        for writer, lag in status
    ]


_OFFSETS_KEYS = (
    "query_id",
    "query_name",
    "sink_name",
    "batch_id",
    "end_offsets",
    "guarantee",
    "replaced_by",
    "updated_at",
)
_POSITION_KEYS = ("source_id", "topic", "partition", "end_offset", "latest_offset", "lag", "measured_at")


def offsets_table(writer: StoredWriter, lag: Iterable[PartitionLag]) -> Table:
    """One row a topic and partition, or a source."""
    table = _table("Source", "Topic", "Partition", "End offset", "Newest", "Lag")
    table.title = printable(
        f"{writer.query_name or writer.query_id} into {writer.sink_name}, batch {_text(writer.batch_id)}"
    )
    for row in lag:
        _add_row(
            table,
            _text(row.source_id),
            row.topic or "-",
            "-" if row.partition is None else str(row.partition),
            _json(row.end_offset),
            _json(row.latest_offset),
            _text(row.lag),
        )
    return table


def history_records(batches: Iterable[StoredBatch]) -> list[dict[str, Any]]:
    """One object a batch."""
    return [dataclasses.asdict(batch) for batch in batches]


def history_table(batches: Iterable[StoredBatch]) -> Table:
    """One row a batch."""
    table = _table("Batch, run", "Sink", "Rows", "From", "To", "Replays")
    for batch in batches:
        _add_row(
            table,
            _lines(
                f"{batch.batch_id}" + (f" (generation {batch.generation})" if batch.generation else ""),
                f"{_time(batch.committed_at)}, {batch.transport}",
                f"run {batch.run_id}",
            ),
            batch.sink_name,
            _lines(str(batch.rows), f"{batch.dropped_rows} dropped" if batch.dropped_rows else ""),
            _offsets(batch.start_offsets),
            _offsets(batch.end_offsets),
            str(batch.replays),
        )
    return table


def diagnosis_lines(found: Diagnosis) -> list[str]:
    """What the doctor found, line by line."""
    again = "which is planned already" if found.runs_again else "which is yet to be planned"
    begins, ends = (_offsets(at).replace("\n", ", ") for at in (found.begins, found.ends))
    return [
        f"Checkpoint {found.location} of query {_text(found.query_id)}:",
        f"  offsets/ ends with batch {_text(found.newest_offsets)}, commits/ with {_text(found.newest_commit)}.",
        *(
            f"Sink {sink.sink_name}: last batch {sink.last_batch_id}, end "
            + _offsets(sink.end_offsets).replace("\n", ", ")
            for sink in found.sinks
            if sink.last_batch_id is not None
        ),
        f"Next start: batch {found.next_batch_id}, {again}, from {begins} to {ends}.",
        *(f"  {_sink_called(sink.sink_name)}: {sink.verdict.name}, {sink.says}" for sink in found.sinks),
        *found.remarks,
        found.advice,
    ]


def _sink_called(name: str) -> str:
    return "any other sink" if name == ANY_SINK else name


def print_table(table: Table) -> None:
    """A table on stdout; where that is no terminal, as wide as it needs to be."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        unbounded = console.options.update(width=10_000)
        console.width = max(console.width, table.__rich_measure__(console, unbounded).maximum)
    # Ids are copied from the first column: it is folded only where it would crop the others.
    table.columns[0].no_wrap = console.width >= _WIDTH_FOR_WHOLE_IDS
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(show_lines=True)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _add_row(table: Table, *cells: str, style: str | None = None) -> None:
    table.add_row(*map(printable, cells), style=style)


def printable(text: str) -> str:
    """``text`` without what a terminal would obey (escape sequences) or hide (marks that turn text around)."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def _lines(*parts: str) -> str:
    return "\n".join(part for part in parts if part)


def _offsets(offsets: Offsets | None) -> str:
    if offsets is None:
        return "?"
    return "\n".join((f"{source}: " if len(offsets) > 1 else "") + _offset(at) for source, at in offsets.items())


def _offset(offset: Any) -> str:
    if not is_kafka(offset):
        return _json(offset)
    return "\n".join(
        f"{topic} " + " ".join(f"{partition}:{parts[partition]}" for partition in sorted(parts, key=int))
        for topic, parts in sorted(offset.items())
    )


def _json(value: Any) -> str:
    return "?" if value is None else json.dumps(value, ensure_ascii=False)


def _text(value: Any) -> str:
    return "?" if value is None else str(value)


def _time(when: datetime) -> str:
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"


def _encode(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(type(value).__name__)
