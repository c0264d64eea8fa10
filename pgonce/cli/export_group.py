"""
The command ``pgonce export-group``: tools that watch consumer groups see where a query stands.

Runs in a shell, without Spark. Invariant: whatever goes wrong, the group is left behind Postgres, never ahead of it.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Annotated

import typer

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.export_group.export import Exported, export_group
from pgonce.offsets_store.postgres.translate import passes, scrub

from .kafka_terms import KafkaConfig, Servers, needed_brokers
from .output import print_error, print_json, print_lines
from .terms import Json, Query, Sink, Url, errors_as_text

# What another look may find gone.
_PASSING = {"KAFKA_UNREACHABLE", "GROUP_IN_USE", "LEDGER_LOCKED"}


def export(
    query: Query,
    *,
    group: Annotated[str, typer.Option(help="The consumer group; best one that nothing else uses.")],
    bootstrap_servers: Servers = None,
    kafka_config: KafkaConfig = None,
    url: Url = "",
    sink: Sink = None,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Overwrite offsets in the group that this query has not set.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Go on until this is stopped.")] = False,
    every: Annotated[float, typer.Option(min=0.1, help="With --follow, the seconds between two looks.")] = 5,
    as_json: Json = False,
) -> None:
    """Set a Kafka consumer group to what Postgres holds of a query's topics, so that lag tools see the query."""
    with errors_as_text():
        brokers = needed_brokers(bootstrap_servers, kafka_config)
        said = ""
        while True:
            try:
                found = export_group(query, group, brokers, url, sink=sink, take_over=take_over)
            except PgonceError as error:
                if not (follow and (error.code in _PASSING or passes(error))):
                    raise
                said = _say_once(scrub(f"{error} Trying again."), said)
            else:
                if said:
                    print_error("It works again.")
                    said = ""
                if found.moves or not follow:
                    _show(found, group, as_json=as_json)
            if not follow:
                return
            time.sleep(every)


def _say_once(text: str, said: str) -> str:
    if text != said:
        print_error(text)
    return text


def _show(found: Exported, group: str, *, as_json: bool) -> None:
    if as_json:
        print_json(dataclasses.asdict(found) | {"group": group})
        return
    what = f"group {group}, query {found.query_id}, batch {found.batch_id}"
    if not found.moves:
        print_lines([f"{what}: all {found.partitions} partitions stand where Postgres stands."])
    for move in found.moves:
        before = "nowhere" if move.before is None else move.before
        back = " (back: the ledger has gone back, as after a restore or a failover)" if move.goes_back else ""
        print_lines([f"{what}: {move.topic}-{move.partition} from {before} to {move.after}{back}"])
