"""
Tables of queries, offsets, batches and batch jobs: one line each, which fits 80 columns.

Pure: runs in the command ``pgonce``. Invariant: a state is shown by its word, never by its colour alone; a name that is
too long for its column ends in an ellipsis, and a number is never cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rich.table import Table

from pgonce.offsets_store.log_lines import in_command
from pgonce.offsets_store.status.failures import StoredFailure
from pgonce.offsets_store.status.figures import (
    age_text,
    count_text,
    duration_text,
    rate_text,
    time_text,
    times_text,
    took_text,
)
from pgonce.offsets_store.status.states import STATES, Finding, QueryState, name_of, tone_of
from pgonce.offsets_store.status.stored import PartitionLag, StoredBatch, StoredWriter, outcomes

from .output import add_row, columns, facts, json_text, offsets_text, text_of

_STYLES = {"bad": "bold red", "warn": "yellow", "good": "green", "calm": "green"}
_SHORT_ID = 8


def states_table(queries: Sequence[QueryState], now: datetime, *, wide: bool = False) -> Table:
    """One line a query and sink."""
    knows_seconds = any(query.lag_seconds is not None for query in queries)
    behind = ["BEHIND"] if knows_seconds else []
    more = ["LAST-LAG", "TRANSPORT", "QUERY-ID", "RUN-ID", "BECAUSE"] if wide else []
    table = columns(
        "QUERY", "SINK", "STATE", "BATCH", "AGE", "ROWS/S", "LAG", *behind, *more,
        numbers=("BATCH", "AGE", "ROWS/S", "LAG", "BEHIND", "LAST-LAG"),
        shortened=("QUERY", "SINK"),
    )  # fmt: skip
    for query in queries:
        add_row(
            table,
            name_of(query),
            text_of(query.sink_name),
            (query.state, _STYLES.get(tone_of(query.state), "dim")),
            "-" if query.batch_id is None else str(query.batch_id),
            age_text(query.published_at, now) if query.published_at else "-",
            rate_text(query.rows_per_second) if query.published_at else "-",
            count_text(query.lag),
            *([duration_text(query.lag_seconds)] if knows_seconds else []),
            *(
                [_last_lag(query, now), query.transport or "-", query.query_id, query.run_id or "-", query.because]
                if wide
                else []
            ),
        )
    return table


def _last_lag(query: QueryState, now: datetime) -> str:
    """The lag that was known last, and how long ago that was."""
    if query.last_lag is None:
        return "?"
    return f"{count_text(query.last_lag)} {age_text(query.lag_measured_at, now)} ago"


def findings_lines(findings: Sequence[Finding], now: datetime, most: int) -> Iterable[str]:
    """Two lines for each finding: what it is, and what to do; and how many more there are than ``most``."""
    for one in findings[:most]:
        since = f" since {time_text(one.since, now)}" if one.since else ""
        sink = f" into {one.sink_name}" if one.sink_name else ""
        verb = "is" if one.finding in STATES else "has"
        yield f"{one.severity}: {name_of(one)}{sink} {verb} {one.finding}{since}: {one.what}."
        yield f"  {one.help}"
    if len(findings) > most:
        yield f"There are {len(findings) - most} more: pgonce health"


def query_facts(query: QueryState, writer: StoredWriter | None, now: datetime) -> Table:
    """All that is known of one query and sink, for people."""
    rows = list(_facts_of_state(query, now))
    if writer is not None:
        rows += _facts_of_writer(writer)
    return facts(rows)


def _facts_of_state(query: QueryState, now: datetime) -> Iterable[tuple[str, str | list[str]]]:
    since = f", since {time_text(query.state_since, now)}" if query.state_since else ""
    yield "State", f"{query.state}{since}: {query.because}"
    if query.failure_message:
        yield (
            "Failed",
            [query.failure_message, f"{times_text(query.failures)} since {time_text(query.failing_since, now)}"],
        )
    if query.batch_id is None:
        yield "Last batch", "none has been published"
    else:
        rows = "" if query.rows is None else f", {query.rows} rows"
        how = f", {query.transport}" if query.transport else ""
        yield "Last batch", f"{query.batch_id}, published {time_text(query.published_at, now)}{rows}{how}"
        usual = f", a batch every {took_text(query.usual_interval_seconds)}" if query.usual_interval_seconds else ""
        yield "Rate", f"{rate_text(query.rows_per_second)} rows a second{usual}"
    if query.lag is not None:
        seconds = "" if query.lag_seconds is None else f", the oldest {duration_text(query.lag_seconds)} old"
        yield "Lag", f"{query.lag} records{seconds}, measured {time_text(query.lag_measured_at, now)}"
    elif query.last_lag is not None:
        yield "Lag", f"? (was {query.last_lag} records at {time_text(query.lag_measured_at, now)})"
    if query.dead_letters:
        yield "Dead letters", f"{query.dead_letters}: pgonce dead-letters {in_command(query.query_id, 'QUERY')}"
    if query.replays:
        yield "Replays", f"{query.replays} skipped"
    yield "Query id", query.query_id
    if query.run_id:
        yield "Run id", query.run_id


# A checkpoint on a disk is read by Python itself, and batches that are judged by ids are named as such.
_READ_BY = {"pyarrow": "offsets are read by pyarrow", "spark": "offsets are read by Spark"}


def _facts_of_writer(writer: StoredWriter) -> list[tuple[str, str]]:
    judged = "by ids (weaker)" if writer.guarantee == "ids" else "by offsets"
    found = [
        ("Became of rows", ", ".join(outcomes(writer.counts))),
        ("Checkpoint", writer.checkpoint_location or ""),
        ("Replays judged", "; ".join(filter(None, [judged, _READ_BY.get(writer.offsets_read_by or "")]))),
        ("Tables", ", ".join(writer.targets or {})),
        ("Table changed", f"at {writer.target_change}" if writer.target_change else ""),
        ("Disagreements", str(writer.disagreements) if writer.disagreements else ""),
        ("Replaces", writer.replaces or ""),
    ]
    return [(name, text) for name, text in found if text]


def failures_table(failures: Sequence[StoredFailure], now: datetime) -> Table:
    """One line a failure; `pgonce errors` has their sentences."""
    table = columns("FAILED", "BATCH", "TIMES", "SEEN-BY", "CODE", numbers=("BATCH", "TIMES"), shortened=("CODE",))
    for failure in failures:
        batch = "-" if failure.batch_id is None else str(failure.batch_id)
        when = f"{age_text(failure.last_at, now)} ago"
        add_row(table, when, batch, str(failure.attempts), failure.seen_by, failure.code)
    return table


def offsets_table(lag: Sequence[PartitionLag]) -> Table:
    """One line a topic and partition, in the words of Kafka's own tools; or one a source that is not Kafka."""
    several = len({row.source_id for row in lag if row.source_id is not None}) > 1
    is_kafka = any(row.topic is not None for row in lag)
    names = [*(["SOURCE"] if several else []), *(["TOPIC", "PARTITION"] if is_kafka else [])]
    numbers = ["PARTITION", "LAG", *(["CURRENT-OFFSET", "LOG-END-OFFSET"] if is_kafka else [])]
    table = columns(*names, "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", numbers=numbers)
    for row in lag:
        place = ["-" if row.topic is None else row.topic, "-" if row.partition is None else str(row.partition)]
        add_row(
            table,
            *([text_of(row.source_id)] if several else []),
            *(place if is_kafka else []),
            json_text(row.end_offset),
            json_text(row.latest_offset),
            text_of(row.lag),
        )
    return table


def history_table(batches: Sequence[StoredBatch], now: datetime, *, wide: bool = False) -> Table:
    """One line a batch, with how long its commit took."""
    sinks = ["SINK"] if len({batch.sink_name for batch in batches}) > 1 else []
    more = ["FROM", "TO"] if wide else []
    table = columns(
        "BATCH", "PUBLISHED", "AGE", "ROWS", "TOOK", *sinks, "TRANSPORT", "REPLAYS", "RUN", *more, "NOTES",
        numbers=("BATCH", "AGE", "ROWS", "TOOK", "REPLAYS"),
        shortened=(*sinks, "NOTES"),
    )  # fmt: skip
    for batch in batches:
        ends = [offsets_text(batch.start_offsets), offsets_text(batch.end_offsets)]
        add_row(
            table,
            f"{batch.batch_id}" + (f"/{batch.generation}" if batch.generation else ""),
            f"{batch.committed_at.astimezone():%m-%d %H:%M:%S}",
            age_text(batch.committed_at, now),
            str(batch.rows),
            took_text(batch.commit_seconds),
            *([batch.sink_name] if sinks else []),
            batch.transport,
            str(batch.replays),
            batch.run_id if wide else batch.run_id[:_SHORT_ID],
            *((end.replace("\n", "; ") for end in ends) if wide else ()),
            _notes(batch),
        )
    return table


def _notes(batch: StoredBatch) -> str:
    dropped = f"{batch.dropped_rows} dropped" if batch.dropped_rows else ""
    # If all rows went into one table, it is the one that the sink names.
    tables = batch.tables if batch.tables and len(batch.tables) > 1 else {}
    into = (f"{count} into {table}" for table, count in tables.items())
    return ", ".join(filter(None, [dropped, *outcomes(batch.counts), *into]))
