"""
The commands that say where one query stands and how it came there: ``offsets`` and ``history``.

Runs in a shell, without Spark. Invariant: they only read.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

import typer

from pgonce.offsets_store.status.figures import FORMS, age_text, parse_since
from pgonce.offsets_store.status.states import name_of
from pgonce.offsets_store.status.store import OffsetsStore

from .answers import tables
from .answers.output import print_found, print_json, print_lines, print_table, text_of
from .kafka import KafkaConfig, Measure, Servers, kafka_options, own_lag, with_measured
from .status import position_records
from .terms import Json, Query, Sink, Url, Wide


def offsets(
    query: Query,
    *,
    url: Url = "",
    sink: Sink = None,
    starting_offsets: Annotated[
        bool, typer.Option("--starting-offsets", help="Print only the JSON for Kafka's startingOffsets.")
    ] = False,
    bootstrap_servers: Servers = None,
    kafka_config: KafkaConfig = None,
    measure: Measure = False,
    as_json: Json = False,
) -> None:
    """Show where a query stands, by topic and partition; or where a new checkpoint of it must start."""
    store, login = OffsetsStore(url), kafka_options(kafka_config) if bootstrap_servers else None
    if starting_offsets:
        # This is JSON for a program in any case, so --json changes nothing.
        typer.echo(store.starting_offsets(query, sink, bootstrap_servers, login))
        return
    own = own_lag(url, kafka_config) if measure and not bootstrap_servers else []
    found = with_measured(store.status_of(query, sink, bootstrap_servers, login), own)
    if as_json:
        print_json(
            [
                {**{name: getattr(writer, name) for name in _OFFSETS_KEYS}, "positions": position_records(lag)}
                for writer, lag in found
            ]
        )
        return
    now = datetime.now(timezone.utc)
    for writer, lag in found:
        when = f"batch {text_of(writer.batch_id)}, published {age_text(writer.updated_at, now)} ago"
        measured = f", lag measured {age_text(lag[0].measured_at, now)} ago" if lag and lag[0].measured_at else ""
        print_lines([f"{name_of(writer)} into {writer.sink_name}: {when}{measured}"])
        print_table(tables.offsets_table(lag))


_OFFSETS_KEYS = (
    "query_id", "query_name", "sink_name", "batch_id", "end_offsets", "guarantee", "replaced_by", "updated_at",
)  # fmt: skip


def history(
    query: Query,
    url: Url = "",
    sink: Sink = None,
    limit: Annotated[int, typer.Option(min=1, help="How many batches to show.")] = 20,
    since: Annotated[str | None, typer.Option(help=f"Only batches since then: {FORMS}.")] = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Show the newest published batches of a query, one line each: rows, time, run, and what became of the rows."""
    batches = OffsetsStore(url).history(query, sink, limit, None if since is None else parse_since(since))
    now = datetime.now(timezone.utc)
    print_found(batches, lambda found: tables.history_table(found, now, wide=wide), as_json=as_json)
