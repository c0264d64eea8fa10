"""
The commands that change a checkpoint or the ledger by hand.

These are ``pgonce recover``, ``accept``, ``retire`` and ``forget``.

Runs in a shell, without Spark, under a role that owns the ledger. Invariant: without ``--yes`` a command only shows
what it would do.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from pgonce.offsets_store.checkpoint.files import open_location
from pgonce.recovery.by_hand import accept_batch, retire_sink
from pgonce.recovery.fence import QUIET_SECONDS
from pgonce.recovery.forget import forget_query
from pgonce.recovery.plan import MAY_DOUBLE
from pgonce.recovery.read_stopped_query import read_checkpoint
from pgonce.recovery.recover import Recovery, recover_checkpoint
from pgonce.recovery.stopped_query import no_checkpoint

from .answers.output import at_work, print_json, print_lines
from .terms import NOT_DONE, Json, Query, QuietFor, Sink, Url, Wait, Yes

CheckpointPath = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.")]


def recover(
    checkpoint: CheckpointPath,
    *,
    url: Url = "",
    yes: Yes = False,
    quiet_for: QuietFor = QUIET_SECONDS,
    wait: Wait = 0,
    as_json: Json = False,
) -> None:
    """Make a stopped query's checkpoint agree with the ledger, forward or back. What it replaces is kept."""
    with at_work("Comparing the checkpoint with the ledger" if not yes else "Repairing the checkpoint"):
        done = recover_checkpoint(
            checkpoint, url, dry_run=not yes, quiet_seconds=quiet_for, wait_seconds=wait, retry_timeout=wait
        )
    if done.query_id is None:
        raise no_checkpoint(read_checkpoint(open_location(checkpoint)))
    if as_json:
        print_json({**dataclasses.asdict(done), "is_needed": done.is_needed})
    else:
        print_lines(_lines(done))


def _lines(recovery: Recovery) -> list[str]:
    lines = [f"Checkpoint {recovery.location} of query {recovery.query_id}.", f"This {recovery.does}."]
    for what, names in (("write", recovery.written), ("remove", recovery.removed), ("keep aside", recovery.kept)):
        lines += [f"  {what:<10} {name}" for name in names]
    if recovery.may_double:
        lines.append(MAY_DOUBLE)
    if recovery.is_done:
        lines.append(f"Done. What was replaced is kept in {recovery.kept_in}.")
    elif recovery.is_needed:
        lines.append("Nothing was changed. Stop the query everywhere, and give --yes to do it.")
    return lines


def accept(
    query: Query,
    *,
    batch: Annotated[int, typer.Option(min=0, help="The batch that Spark runs next and that is refused.")],
    reason: Annotated[str, typer.Option(help="The reason why this batch may follow, which the ledger keeps.")],
    url: Url = "",
    sink: Sink = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="The query's checkpoint, if it is not where the ledger says.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Publish once a batch that is refused for its offsets, such as GAP. Rows may be lost or doubled."""
    found = accept_batch(query, batch, url, reason=reason, sink=sink, checkpoint_location=checkpoint, dry_run=not yes)
    print_lines([*found.says, "Accepted, once: start the query." if yes else NOT_DONE])


def retire(
    query: Query,
    *,
    url: Url = "",
    sink: Sink = None,
    reason: Annotated[str | None, typer.Option(help="The reason, which the ledger keeps.")] = None,
    yes: Yes = False,
) -> None:
    """Say that a sink of a query is gone for good. It is refused if it comes back, and recovery leaves it out."""
    found = retire_sink(query, url, sink=sink, reason=reason, dry_run=not yes)
    print_lines([*found.says, "Retired." if yes else NOT_DONE])


def forget(
    query: Query,
    *,
    reason: Annotated[str, typer.Option(help="The reason, which the ledger keeps.")],
    url: Url = "",
    sink: Sink = None,
    truncate: Annotated[
        bool,
        typer.Option("--truncate", help="Also remove all rows of its tables, and the deletes that are remembered."),
    ] = False,
    quiet_for: QuietFor = QUIET_SECONDS,
    wait: Wait = 0,
    yes: Yes = False,
) -> None:
    """Take a query out of the way of a new one that loads its tables again, and empty these with --truncate."""
    found = forget_query(
        query,
        url,
        reason=reason,
        sink=sink,
        truncate=truncate,
        dry_run=not yes,
        quiet_seconds=quiet_for,
        wait_seconds=wait,
    )
    lines = [
        f"Query {found.query_id} ({found.query_name or 'no name'}):",
        *(f"  sink {one.sink_name}: stands at batch {one.last_batch_id}" for one in found.sinks),
        "Once it is forgotten, it is refused (FENCED) if it comes back, and a new query may feed this sink from the "
        "beginning of its source.",
    ]
    if truncate:
        lines.append(
            "In the same transaction, all rows of these tables are removed (TRUNCATE), also those from outside pgonce, "
            f"and deletes that onlyNewer remembers of them are forgotten: {', '.join(found.emptied)}."
        )
    else:
        lines.append(
            "The rows stay in the tables, and so do the deletes that onlyNewer remembers. A new query of the same "
            "source would write the rows again: --truncate removes all this. If you remove the rows by SQL, forget "
            "the deletes too: page `change-data` of the documentation, Other keys, or another order."
        )
    done = "Forgotten. If a new query is to load the tables again, start it on a new checkpoint."
    print_lines([*lines, done if yes else NOT_DONE])
