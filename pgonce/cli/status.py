"""
The commands that say how queries are: ``status`` and ``health``.

Runs in a shell, without Spark. Invariant: they only read. What is asked of brokers is measured before the ledger is
read, and counts in all that an answer says.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from pgonce.offsets_store.errors import ConnectError, NotFoundError
from pgonce.offsets_store.kafka.settings import brokers
from pgonce.offsets_store.ledger.writers import is_meant
from pgonce.offsets_store.status.details import QueryDetails, read_details
from pgonce.offsets_store.status.ends import Status
from pgonce.offsets_store.status.figures import parse_span
from pgonce.offsets_store.status.measure import Measured, measure_partitions
from pgonce.offsets_store.status.states import (
    ENDED,
    Finding,
    QueryState,
    Sort,
    in_order,
    judged,
    line_of,
    name_of,
    own_findings,
    read_states,
)
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.status.stored import PartitionLag

from .answers import tables
from .answers.output import print_json, print_lines, print_table, text_of
from .kafka import KafkaConfig, Servers, kafka_options, with_measured
from .terms import ExitCode, Json, Sink, Url, Wide

_FEW = 5
_NONE = "No streaming query is in the ledger: it is empty, or has batch jobs only (`SELECT * FROM pgonce.batch_jobs`)."

OneQuery = Annotated[
    str | None,
    typer.Argument(help="Show all that is known of one query: its name, its id, the beginning of the id, or its sink."),
]


def status(
    query: OneQuery = None,
    *,
    url: Url = "",
    sink: Sink = None,
    bootstrap_servers: Servers = None,
    kafka_config: KafkaConfig = None,
    sort: Annotated[Sort, typer.Option(help="The order of the lines.")] = "state",
    wide: Wide = False,
    everything: Annotated[bool, typer.Option("--all", help="Show queries that were retired or replaced too.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until this is stopped.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="With --watch, the seconds between two looks.")] = 2,
    as_json: Json = False,
) -> None:
    """Show what every query does, one line each: its state, last batch and lag; or all that is known of one query."""

    def show() -> None:
        store = OffsetsStore(url)
        measured = _measured(url, bootstrap_servers, kafka_config)
        states, findings = read_states(url, [one.total for one in measured])
        if query is None:
            shown = states if everything else [one for one in states if one.state not in ENDED]
            _show_all(store, in_order(shown, sort), findings, wide=wide, as_json=as_json)
        else:
            found = with_measured(_statuses(store, states, query, sink), measured)
            chosen = _chosen(states, found, query, sink)
            _show_one(url, chosen, found, own_findings(findings, chosen), as_json=as_json)

    _again_and_again(show, every if watch else None)


def _measured(url: str, servers: str | None, config: Path | None) -> list[Measured]:
    """What these brokers tell; nothing if none are named."""
    kafka = brokers(servers, kafka_options(config) if servers else None)
    return measure_partitions(url, kafka) if kafka else []


def _again_and_again(show: Callable[[], None], every: float | None) -> None:
    if every is None:
        show()
        return
    with suppress(KeyboardInterrupt):
        Console().clear()
        show()
        while True:
            time.sleep(every)
            Console().clear()
            try:
                show()
            except ConnectError as error:
                # Postgres restarts, for example, and that is what a watch is for.
                typer.echo(error)


def _show_all(
    store: OffsetsStore, states: Sequence[QueryState], findings: Sequence[Finding], *, wide: bool, as_json: bool
) -> None:
    if as_json:
        print_json(_records(states, store.status()))
    elif not states:
        typer.echo(_NONE)
    else:
        now = datetime.now(timezone.utc)
        print_table(tables.states_table(states, now, wide=wide))
        if findings:
            typer.echo()
            print_lines(tables.findings_lines(findings, now, _FEW))


def _records(states: Iterable[QueryState], writers: Iterable[Status]) -> list[dict[str, Any]]:
    """One object a query and sink: what it does, and what is stored of it (null if it has published nothing yet)."""
    stored = {(writer.query_id, writer.sink_name): dataclasses.asdict(writer) for writer, _ in writers}
    return [
        {**dict.fromkeys(_STORED), **stored.get((one.query_id, one.sink_name or ""), {}), **dataclasses.asdict(one)}
        for one in states
    ]


_STORED = (
    "checkpoint_location", "generation", "end_offsets", "guarantee", "disagreements", "replaces", "replaced_by",
    "retired_at", "updated_at", "targets", "target_change", "counts", "offsets_read_by",
)  # fmt: skip


def _statuses(store: OffsetsStore, states: Sequence[QueryState], query: str, sink: str | None) -> list[Status]:
    """What is stored of the query; nothing if it has published nothing yet."""
    try:
        return store.status_of(query, sink)
    except NotFoundError:
        if any(_is_new(one, query, sink) for one in states):
            return []
        raise


def _chosen(states: Iterable[QueryState], found: Iterable[Status], query: str, sink: str | None) -> list[QueryState]:
    """The states of the query that is meant, of which this was ``found`` in the ledger."""
    stored = {(writer.query_id, writer.sink_name) for writer, _ in found}
    return [one for one in states if (one.query_id, one.sink_name) in stored or _is_new(one, query, sink)]


def _show_one(
    url: str, chosen: Sequence[QueryState], found: Sequence[Status], findings: Sequence[Finding], *, as_json: bool
) -> None:
    stored: dict[tuple[str, str | None], list[PartitionLag]] = {
        (writer.query_id, writer.sink_name): lag for writer, lag in found
    }
    if as_json:
        print_json(
            [
                {**record, "positions": _position_records(stored.get((record["query_id"], record["sink_name"]), []))}
                for record in _records(chosen, found)
            ]
        )
        return
    now = datetime.now(timezone.utc)
    for one in chosen:
        details = read_details(url, one.query_id, one.sink_name, _FEW)
        print_lines([f"{name_of(one)} into {text_of(one.sink_name)}"])
        print_table(tables.query_facts(one, details.writer, now))
        for found_table in _tables_of(details, stored.get((one.query_id, one.sink_name), []), now):
            typer.echo()
            print_table(found_table)
        typer.echo()
    print_lines(tables.findings_lines(findings, now, len(findings)))


def _tables_of(details: QueryDetails, lag: Sequence[PartitionLag], now: datetime) -> Iterable[Table]:
    """What went wrong, where it stands, and its newest batches."""
    if details.failures:
        yield tables.failures_table(details.failures, now)
    if lag:
        yield tables.offsets_table(lag)
    if details.batches:
        yield tables.history_table(details.batches, now)


_POSITION_KEYS = ("source_id", "topic", "partition", "end_offset", "latest_offset", "lag", "measured_at")


def _position_records(lag: Iterable[Any]) -> list[dict[str, Any]]:
    """One object a topic and partition, or a source."""
    return [{key: getattr(row, key) for key in _POSITION_KEYS} for row in lag]


def health(
    query: OneQuery = None,
    *,
    url: Url = "",
    sink: Sink = None,
    max_age: Annotated[
        str | None,
        typer.Option("--max-age", help="Its last batch may be this old: 90s, 5m, 2h. An idle query may rest."),
    ] = None,
    max_lag: Annotated[int | None, typer.Option("--max-lag", min=0, help="It may be this many records behind.")] = None,
    bootstrap_servers: Servers = None,
    kafka_config: KafkaConfig = None,
    as_json: Json = False,
) -> None:
    """Say what needs attention, with an exit code for probes: all queries, or one, which may be given bounds."""
    oldest = None if max_age is None else parse_span(max_age)
    store = OffsetsStore(url)
    measured = [one.total for one in _measured(url, bootstrap_servers, kafka_config)]
    (states, found), now = read_states(url, measured), datetime.now(timezone.utc)
    if query is None:
        meant = [one for one in states if one.state not in ENDED]
    else:
        meant = _chosen(states, _statuses(store, states, query, sink), query, sink)
        found = own_findings(found, meant)
    is_well, judgements = judged(meant, found, oldest, max_lag, now)
    late = [(one, why) for one, whys in judgements for why in whys]
    if as_json:
        print_json(
            {
                "healthy": is_well,
                "findings": [dataclasses.asdict(one) for one in found],
                "beyond_bounds": [
                    {"query_id": one.query_id, "sink_name": one.sink_name, "what": why} for one, why in late
                ],
            }
        )
    else:
        if query is not None:
            print_lines("; ".join([line_of(one, now), *whys]) for one, whys in judgements)
        elif late:
            print_lines(f"{name_of(one)} into {text_of(one.sink_name)}: {why}" for one, why in late)
        if found:
            print_lines(tables.findings_lines(found, now, len(found)))
        elif query is None and not late:
            typer.echo(f"Nothing needs attention: {len(judgements)} queries.")
    if not is_well:
        raise typer.Exit(ExitCode.UNHEALTHY)


def _is_new(one: QueryState, query: str, sink: str | None) -> bool:
    """Whether it is the query that is meant, and has published nothing yet."""
    is_chosen = sink in (None, one.sink_name) and is_meant(query, one.query_id, one.query_name)
    return one.batch_id is None and is_chosen
