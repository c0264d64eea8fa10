"""
The commands by which a person decides about a query: ``pgonce accept``, ``retire`` and ``forget``.

Runs in a shell, without Spark, under a role that owns the ledger. Invariant: without ``--yes`` a command only shows
what it would do.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pgonce.offsets_store.recovery.by_hand import accept_batch, retire_sink
from pgonce.offsets_store.recovery.forget import Forgetting, forget_query
from pgonce.offsets_store.recovery.still_running import QUIET_SECONDS

from .output import print_lines
from .terms import NOT_DONE, Query, QuietFor, Sink, Url, Wait, Yes, errors_as_text


def accept(
    query: Query,
    *,
    batch: Annotated[int, typer.Option(min=0, help="The batch that Spark runs next, and that is refused.")],
    reason: Annotated[str, typer.Option(help="Why this batch may follow; the ledger keeps it.")],
    url: Url = "",
    sink: Sink = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="The query's checkpoint, if it is not where the ledger says.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Let one refused batch through, once, if nothing can prove or repair it. Rows may be lost or doubled."""
    with errors_as_text():
        found = accept_batch(
            query, batch, url, reason=reason, sink=sink, checkpoint_location=checkpoint, dry_run=not yes
        )
        stands_at, end = found.sink.last_batch_id, found.sink.end_offsets
        print_lines(
            [
                f"Query {found.query_id}, sink {found.sink.sink_name}: stands at batch {stands_at}, end {end}.",
                f"Batch {batch} would be refused as {found.verdict.name}: {found.verdict.value}.",
                "Once it is accepted, its rows are published, whatever they are, and the stored offsets move to its "
                "end. Nothing proves that no row is lost or doubled.",
                "Accepted, once: start the query." if yes else NOT_DONE,
            ]
        )


def retire(
    query: Query,
    *,
    url: Url = "",
    sink: Sink = None,
    reason: Annotated[str | None, typer.Option(help="Why; the ledger keeps it.")] = None,
    yes: Yes = False,
) -> None:
    """Say that a sink of a query is gone for good. It is refused if it comes back, and recovery leaves it out."""
    with errors_as_text():
        query_id, found = retire_sink(query, url, sink=sink, reason=reason, dry_run=not yes)
        print_lines(
            [
                f"Query {query_id}, sink {found.sink_name}: stands at batch {found.last_batch_id}.",
                "Once it is retired, it is refused for good, and recovery leaves it out.",
                "Retired." if yes else NOT_DONE,
            ]
        )


def forget(
    query: Query,
    *,
    reason: Annotated[str, typer.Option(help="Why; the ledger keeps it.")],
    url: Url = "",
    sink: Sink = None,
    quiet_for: QuietFor = QUIET_SECONDS,
    wait: Wait = 0,
    yes: Yes = False,
) -> None:
    """Take a query out of the way of a new one that loads its tables from the beginning; empty them yourself."""
    with errors_as_text():
        found = forget_query(
            query, url, reason=reason, sink=sink, dry_run=not yes, quiet_seconds=quiet_for, wait_seconds=wait
        )
        lines = [*_forget_lines(found), "Forgotten. Start the new query on a new checkpoint." if yes else NOT_DONE]
        print_lines(lines)


def _forget_lines(found: Forgetting) -> list[str]:
    lines = [f"Query {found.query_id} ({found.query_name or 'no name'}):"]
    lines += [f"  sink {sink.sink_name}: stands at batch {sink.last_batch_id}" for sink in found.sinks]
    lines.append(
        "Once it is forgotten, it is refused (FENCED) if it comes back, and a new query may feed this sink from the "
        "beginning of its source."
    )
    lines.append(
        "The rows stay where they are, and a query that reads the same again would double "
        "them. So empty the tables before you start it:"
    )
    lines += [f"  TRUNCATE {name};" for name in sorted({name for names in found.tables.values() for name in names})]
    lines += [
        f"  (and what was written as {name}: which tables these are is not recorded)"
        for name, tables in found.tables.items()
        if not tables
    ]
    lines += [
        f"But {name} is fed by {', '.join(others)} too: those rows would be removed with it, and would not come again."
        for name, others in found.others.items()
        if others
    ]
    return lines
