"""
The commands that say where a new checkpoint of a query starts, and how it came there: ``offsets`` and ``history``.

Runs in a shell, without Spark. Invariant: they only read.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Annotated

import typer

from pgonce.offsets_store.status.figures import time_ago
from pgonce.offsets_store.status.store import OffsetsStore

from .answers import tables
from .answers.output import print_found
from .kafka import KafkaConfig, Servers, kafka_options
from .terms import Json, Query, Sink, Url, Wide


def offsets(
    query: Query,
    *,
    url: Url = "",
    sink: Sink = None,
    bootstrap_servers: Servers = None,
    kafka_config: KafkaConfig = None,
) -> None:
    """Print where a new checkpoint of a query must start: the JSON for Kafka's startingOffsets."""
    login = kafka_options(kafka_config) if bootstrap_servers else None
    typer.echo(OffsetsStore(url).starting_offsets(query, sink, bootstrap_servers, login))


def history(
    query: Query,
    url: Url = "",
    sink: Sink = None,
    limit: Annotated[int, typer.Option(min=1, help="How many batches to show.")] = 20,
    since: Annotated[str | None, typer.Option(help="Only batches within this time: 90s, 5m, 3h or 2d.")] = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Show the newest published batches of a query, one line each: rows, time, run, and what became of the rows."""
    batches = OffsetsStore(url).history(query, sink, limit, None if since is None else time_ago(since))
    now = datetime.now(timezone.utc)
    print_found(batches, lambda found: tables.history_table(found, now, wide=wide), as_json=as_json)
