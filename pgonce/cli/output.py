"""
Show answers, as lines, tables or JSON.

Runs in the command ``pgonce``. Invariant: each line that is printed is one line, even if its text has line breaks, and
nothing that came from outside makes the terminal obey or hide anything; what is unknown reads ``?``, and null in JSON.
The keys of the JSON are stable, and both forms show the same facts.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import typer
from rich.console import Console
from rich.table import Table

from pgonce.offsets_store.log_lines import one_line
from pgonce.offsets_store.offsets import Offsets, is_kafka
from pgonce.offsets_store.status.dead_letters import StoredLetter
from pgonce.offsets_store.status.ends import Status, last_known_lag, total_lag
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredJob, StoredWriter

_Found = TypeVar("_Found")


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text on stdout."""
    typer.echo("\n".join(map(one_line, lines)))


def print_error(text: str) -> None:
    """An error's text on stderr."""
    typer.echo(one_line(text), err=True)


def print_json(answer: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(answer, indent=2, default=_encode))


def offsets_text(offsets: Offsets | None) -> str:
    """Where sources stand, one line for each topic or source."""
    if offsets is None:
        return "?"
    return "\n".join(
        (f"{one_line(source)}: " if len(offsets) > 1 else "") + _offset(at) for source, at in offsets.items()
    )


def _offset(offset: Any) -> str:
    if not is_kafka(offset):
        return json_text(offset)
    return "\n".join(
        one_line(f"{topic} " + " ".join(f"{partition}:{parts[partition]}" for partition in sorted(parts, key=int)))
        for topic, parts in sorted(offset.items())
    )


def tables_text(tables: Mapping[str, int] | None) -> str:
    """How many rows went into each table, a line each; empty where they all went into one."""
    if not tables or len(tables) < 2:  # noqa: PLR2004 (one table is the one that the sink names)
        return ""
    return "\n".join(one_line(f"{count} into {table}") for table, count in tables.items())


def counts_text(counts: Mapping[str, int] | None) -> str:
    """What became of a batch's rows, one line for each outcome that any row had."""
    return "\n".join(
        one_line(f"{count} {outcome.replace('_', ' ')}") for outcome, count in (counts or {}).items() if count
    )


def json_text(value: Any) -> str:
    """A value as JSON; ``?`` where it is unknown."""
    return "?" if value is None else json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    """A value as text; ``?`` where it is unknown."""
    return "?" if value is None else str(value)


def _encode(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(type(value).__name__)


_WIDTH_FOR_WHOLE_IDS = 100
_LONGEST_ROW = 400


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


# A checkpoint on a disk is read by Python itself, and the table says next to it that batches are judged by ids.
_READ_BY = {"pyarrow": "offsets read by pyarrow", "spark": "offsets read by Spark"}


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
                f"run {text_of(writer.run_id)}",
                *(["replaced by", writer.replaced_by] if writer.replaced_by else []),
                f"retired {_time(writer.retired_at)}" if writer.retired_at else "",
            ),
            _lines(writer.sink_name, f"at {writer.target_change}" if writer.target_change else ""),
            _lines(
                text_of(writer.batch_id),
                f"{_time(writer.updated_at)}, {writer.transport}" if writer.transport else _time(writer.updated_at),
                *counts_text(writer.counts).split("\n"),
                "judged by ids (weaker)" if writer.guarantee == "ids" else "",
                _READ_BY.get(writer.offsets_read_by or "", ""),
                f"{writer.disagreements} disagree" if writer.disagreements else "",
            ),
            offsets_text(writer.end_offsets).split("\n"),
            _lag_text(lag),
            str(writer.replays),
            style="dim" if old else None,
        )
    return table


def _lag_text(lag: Sequence[PartitionLag]) -> list[str]:
    """The lag, and when it was measured; a lag that is too old is shown as the lag of that time."""
    last, measured_at = last_known_lag(lag)
    now = total_lag(lag)
    when = f"at {_time(measured_at)}" if measured_at else ""
    if now is None and last is not None:
        return _lines(text_of(None), f"was {last}", when)
    return _lines(text_of(now), when if now is not None else "")


def offsets_records(status: Iterable[Status]) -> list[dict[str, Any]]:
    """One object a writer; its ``positions`` have one object a topic and partition, or a source, with the lag."""
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
    lag = list(lag)
    measured_at = lag[0].measured_at if lag else None
    table = _table("Source", "Topic", "Partition", "End offset", f"Newest{_at(measured_at)}", "Lag")
    table.title = one_line(
        f"{writer.query_name or writer.query_id} into {writer.sink_name}, batch {text_of(writer.batch_id)}"
    )
    for row in lag:
        _add_row(
            table,
            text_of(row.source_id),
            row.topic or "-",
            "-" if row.partition is None else str(row.partition),
            json_text(row.end_offset),
            json_text(row.latest_offset),
            text_of(row.lag),
        )
    return table


def _at(when: datetime | None) -> str:
    return f" at {_time(when)}" if when else ""


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
            _lines(
                str(batch.rows),
                f"{batch.dropped_rows} dropped" if batch.dropped_rows else "",
                *counts_text(batch.counts).split("\n"),
                *tables_text(batch.tables).split("\n"),
            ),
            offsets_text(batch.start_offsets).split("\n"),
            offsets_text(batch.end_offsets).split("\n"),
            str(batch.replays),
        )
    return table


def job_records(jobs: Iterable[StoredJob]) -> list[dict[str, Any]]:
    """One object a batch job."""
    return [dataclasses.asdict(job) for job in jobs]


def job_table(jobs: Iterable[StoredJob]) -> Table:
    """One row a batch job."""
    table = _table("Key, run", "Sink", "Rows", "Skipped")
    for job in jobs:
        _add_row(
            table,
            _lines(job.batch_key, f"{_time(job.committed_at)}, {job.transport}", f"run {job.attempt}"),
            job.sink_name,
            _lines(str(job.rows), *counts_text(job.counts).split("\n"), "hashed" if job.content_hash else ""),
            _lines(str(job.skips), f"last {_time(job.last_skipped_at)}" if job.last_skipped_at else ""),
        )
    return table


def letter_records(letters: Iterable[StoredLetter]) -> list[dict[str, Any]]:
    """One object a dead letter, with the whole row, which is the text of a JSON object."""
    return [dataclasses.asdict(letter) for letter in letters]


def letter_table(letters: Iterable[StoredLetter]) -> Table:
    """One row a dead letter; a long row of the batch is cut."""
    table = _table("Id, time", "Batch, target", "Position", "Column, code, message", "Row")
    for letter in letters:
        row = letter.row_data
        _add_row(
            table,
            _lines(str(letter.dead_letter_id), _time(letter.made_at)),
            _lines(f"batch {letter.batch_id}", letter.target),
            "-" if letter.position is None else json_text(letter.position),
            _lines(letter.column_name or "-", letter.code, letter.message),
            row if len(row) <= _LONGEST_ROW else f"{row[:_LONGEST_ROW]}... (--json shows all)",
        )
    return table


def print_found(
    found: Sequence[_Found],
    records: Callable[[Sequence[_Found]], object],
    table: Callable[[Sequence[_Found]], Table],
    *,
    as_json: bool,
    if_none: str | None = None,
) -> None:
    """Show what was found, as JSON or as a table; ``if_none`` is said in place of an empty table."""
    if as_json:
        print_json(records(found))
    elif found or if_none is None:
        print_table(table(found))
    else:
        typer.echo(if_none)


def print_table(table: Table) -> None:
    """A table on stdout; if that is not a terminal, as wide as it needs to be."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        unbounded = console.options.update(width=10_000)
        console.width = max(console.width, table.__rich_measure__(console, unbounded).maximum)
    # People copy ids from the first column, so it is folded only if it would crop the others.
    table.columns[0].no_wrap = console.width >= _WIDTH_FOR_WHOLE_IDS
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(show_lines=True)
    for name in columns:
        table.add_column(name, overflow="fold")
    return table


def _add_row(table: Table, *cells: str | list[str], style: str | None = None) -> None:
    """A cell is one line, even if its text has line breaks, or a list of lines."""
    lines = ([cell] if isinstance(cell, str) else cell for cell in cells)
    table.add_row(*("\n".join(map(one_line, cell)) for cell in lines), style=style)


def _lines(*parts: str) -> list[str]:
    return [part for part in parts if part]


def _time(when: datetime) -> str:
    return f"{when.astimezone():%Y-%m-%d %H:%M:%S}"
