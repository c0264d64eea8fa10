"""
The commands that change a checkpoint: ``pgonce recover`` and ``new-checkpoint``.

Runs in a shell, without Spark, under a role that owns the ledger. Invariant: without ``--yes`` a command only shows
what it would do.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from pgonce.offsets_store.checkpoint.files import open_location
from pgonce.offsets_store.recovery.new_checkpoint import write_new_checkpoint
from pgonce.offsets_store.recovery.read_stopped_query import read_checkpoint
from pgonce.offsets_store.recovery.recover import Recovery, recover_checkpoint
from pgonce.offsets_store.recovery.refused_recovery import no_checkpoint
from pgonce.offsets_store.recovery.still_running import QUIET_SECONDS
from pgonce.offsets_store.recovery.undo import undo_recovery

from .output import print_json, print_lines
from .terms import NOT_DONE, Json, Query, QuietFor, Url, Wait, Yes, errors_as_text

CheckpointPath = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.")]


def recover(
    checkpoint: CheckpointPath,
    *,
    url: Url = "",
    yes: Yes = False,
    # The name of --yes in earlier versions.
    apply: Annotated[bool, typer.Option("--apply", hidden=True)] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Bring back what the newest recovery replaced.")] = False,
    quiet_for: QuietFor = QUIET_SECONDS,
    wait: Wait = 0,
    as_json: Json = False,
) -> None:
    """Make a stopped query's checkpoint agree with the ledger, forward or back. What it replaces is kept."""
    with errors_as_text():
        work = undo_recovery if undo else recover_checkpoint
        dry_run = not (yes or apply)
        done = work(checkpoint, url, dry_run=dry_run, quiet_seconds=quiet_for, wait_seconds=wait, retry_timeout=wait)
        if done.query_id is None:
            raise no_checkpoint(read_checkpoint(open_location(checkpoint)))
        if as_json:
            print_json({**dataclasses.asdict(done), "is_needed": done.is_needed})
        else:
            print_lines(_recovery_lines(done))


def _recovery_lines(recovery: Recovery) -> list[str]:
    lines = [f"Checkpoint {recovery.location} of query {recovery.query_id}.", f"This {recovery.does}."]
    for what, names in (("write", recovery.written), ("remove", recovery.removed), ("keep aside", recovery.kept)):
        lines += [f"  {what:<10} {name}" for name in names]
    if recovery.is_done:
        lines.append(f"Done. What was replaced is kept in {recovery.kept_in}; `pgonce recover --undo` brings it back.")
    elif recovery.is_needed:
        lines.append("Nothing was changed. Stop the query everywhere, and give --yes to do it.")
    return lines


def new_checkpoint(
    query: Query,
    path: Annotated[str, typer.Argument(help="Where to write it; there must be nothing yet.")],
    *,
    url: Url = "",
    quiet_for: QuietFor = QUIET_SECONDS,
    wait: Wait = 0,
    yes: Yes = False,
) -> None:
    """Write a checkpoint from the ledger for a stateless query that has lost its own: same query id, same batch."""
    with errors_as_text():
        plan = write_new_checkpoint(query, path, url, dry_run=not yes, quiet_seconds=quiet_for, wait_seconds=wait)
        lines = [f"Query {plan.query_id}: {plan.does}, at {path}.", *(f"  write      {name}" for name, _ in plan.files)]
        lines.append("Done. Start the query with this checkpointLocation." if yes else NOT_DONE)
        print_lines(lines)
