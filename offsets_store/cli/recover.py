"""
The commands for a checkpoint: ``pgonce doctor``, ``recover`` and ``new-checkpoint``.

Runs in a shell, without Spark, under a role that owns the ledger. Invariant: without ``--yes`` a command only shows
what it would do.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from pgonce.offsets_store.checkpoint.files import open_location
from pgonce.offsets_store.cli.output import offsets_text, print_json, print_lines, text_of
from pgonce.offsets_store.cli.terms import (
    NOT_DONE,
    ExitCode,
    Json,
    Query,
    QuietFor,
    Url,
    Wait,
    Yes,
    errors_as_text,
)
from pgonce.offsets_store.recovery.diagnosis import Diagnosis, Finding
from pgonce.offsets_store.recovery.doctor import examine
from pgonce.offsets_store.recovery.first_contact import ANY_SINK
from pgonce.offsets_store.recovery.new_checkpoint import write_new_checkpoint
from pgonce.offsets_store.recovery.read_stopped_query import read_checkpoint
from pgonce.offsets_store.recovery.recover import Recovery, recover_checkpoint
from pgonce.offsets_store.recovery.refused_recovery import no_checkpoint
from pgonce.offsets_store.recovery.still_running import QUIET_SECONDS
from pgonce.offsets_store.recovery.undo import undo_recovery

_EXIT_CODES = {
    Finding.AGREE: ExitCode.OK,
    Finding.RECOVERABLE: ExitCode.RECOVERABLE,
    Finding.NEEDS_PERSON: ExitCode.NEEDS_PERSON,
    Finding.UNCERTAIN: ExitCode.NEEDS_PERSON,
}

CheckpointPath = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.")]


def doctor(
    checkpoint: CheckpointPath,
    *,
    url: Url = "",
    sink: Annotated[
        str | None,
        typer.Option(help="The sink that the query will write to, if it is new to the ledger."),
    ] = None,
    query_name: Annotated[str | None, typer.Option(help="The name of such a query (queryName).")] = None,
    as_json: Json = False,
) -> None:
    """
    Compare a checkpoint with the ledger: say what happens at the next start, and what repairs it.

    Exit code 0: they agree; 5: `pgonce recover` repairs it; 6: a person must decide, or it depends on what is not
    written down anywhere; 7: the checkpoint cannot be read.
    """
    with errors_as_text():
        found = examine(checkpoint, url, sink=sink, query_name=query_name)
        if as_json:
            print_json(found.record())
        else:
            print_lines(_diagnosis_lines(found))
    raise typer.Exit(_EXIT_CODES[found.finding])


def _diagnosis_lines(found: Diagnosis) -> list[str]:
    again = "which is planned already" if found.runs_again else "which is not planned yet"
    begins, ends = (offsets_text(at).replace("\n", ", ") for at in (found.begins, found.ends))
    return [
        f"Checkpoint {found.location} of query {text_of(found.query_id)}:",
        f"  offsets/ ends with batch {text_of(found.newest_offsets)}, commits/ with {text_of(found.newest_commit)}.",
        *(
            f"Sink {sink.sink_name}: last batch {sink.last_batch_id}, end "
            + offsets_text(sink.end_offsets).replace("\n", ", ")
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
