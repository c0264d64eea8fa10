"""
What people do about a query that is refused: ``pgonce doctor``, ``recover``, ``accept``, ``retire``, ``forget`` and
``new-checkpoint``.

Runs in a shell, without Spark, under a role that owns the ledger. Invariant: what a command will do is shown before it
is done, and without the option that says so it does nothing.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from pgonce.offsets_store.checkpoint.files import open_location
from pgonce.offsets_store.cli import tables as show
from pgonce.offsets_store.cli.terms import ExitCode, Json, Query, Sink, Url, errors_as_text
from pgonce.offsets_store.errors import CheckpointError
from pgonce.offsets_store.recovery import doctor as diagnosis
from pgonce.offsets_store.recovery import interventions
from pgonce.offsets_store.recovery import new_checkpoint as rebuilding
from pgonce.offsets_store.recovery.acceptance import refused_verdict
from pgonce.offsets_store.recovery.forget import Forgetting, forget_query
from pgonce.offsets_store.recovery.read_stopped_query import read_checkpoint, read_sinks
from pgonce.offsets_store.recovery.recover import Recovery, recover_checkpoint, undo_recovery
from pgonce.offsets_store.recovery.refused_recovery import no_checkpoint
from pgonce.offsets_store.recovery.still_running import QUIET_SECONDS
from pgonce.offsets_store.recovery.stopped_query import CheckpointFacts, SinkFacts
from pgonce.offsets_store.status.store import OffsetsStore

_EXIT_CODES = {
    diagnosis.Finding.AGREE: ExitCode.OK,
    diagnosis.Finding.RECOVERABLE: ExitCode.RECOVERABLE,
    diagnosis.Finding.NEEDS_PERSON: ExitCode.NEEDS_PERSON,
    diagnosis.Finding.UNCERTAIN: ExitCode.NEEDS_PERSON,
}

CheckpointPath = Annotated[str, typer.Argument(metavar="CHECKPOINT", help="The query's checkpointLocation.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without this, only show what would be done.")]
QuietFor = Annotated[
    float,
    typer.Option(min=0, help="Seconds for which nothing of the query may have been written: a running one writes."),
]
Wait = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds to wait, at most, for Postgres to answer, and until nothing shows a running query."
    ),
]


def doctor(
    checkpoint: CheckpointPath,
    *,
    url: Url = "",
    sink: Annotated[
        str | None, typer.Option(help="The sink that the query will write to, if the ledger does not know it yet.")
    ] = None,
    query_name: Annotated[str | None, typer.Option(help="Such a query's name (queryName).")] = None,
    as_json: Json = False,
) -> None:
    """
    Compare a checkpoint with the ledger: what happens at the next start, and what mends it.

    Exit code 0: they agree; 5: `pgonce recover` mends it; 6: a person must decide, or it depends on what nobody has
    written down; 7: the checkpoint cannot be read.
    """
    with errors_as_text():
        found = diagnosis.examine(checkpoint, url, sink=sink, query_name=query_name)
        if as_json:
            show.print_json(found.record())
        else:
            typer.echo(show.printable("\n".join(show.diagnosis_lines(found))))
    raise typer.Exit(_EXIT_CODES[found.finding])


def recover(
    checkpoint: CheckpointPath,
    *,
    url: Url = "",
    yes: Yes = False,
    # The word that this command had first.
    apply: Annotated[bool, typer.Option("--apply", hidden=True)] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Bring back what the newest recovery replaced.")] = False,
    quiet_for: QuietFor = QUIET_SECONDS,
    wait: Wait = 0,
    as_json: Json = False,
) -> None:
    """Make a stopped query's checkpoint agree with the ledger, forward or back; what it replaces is kept."""
    with errors_as_text():
        work = undo_recovery if undo else recover_checkpoint
        dry_run = not (yes or apply)
        done = work(checkpoint, url, dry_run=dry_run, quiet_seconds=quiet_for, wait_seconds=wait, retry_timeout=wait)
        if done.query_id is None:
            raise no_checkpoint(read_checkpoint(open_location(checkpoint)))
        if as_json:
            show.print_json({**dataclasses.asdict(done), "is_needed": done.is_needed})
        else:
            typer.echo(show.printable("\n".join(_recovery_lines(done))))


def _recovery_lines(recovery: Recovery) -> list[str]:
    lines = [f"Checkpoint {recovery.location} of query {recovery.query_id}.", f"This {recovery.does}."]
    for what, names in (("write", recovery.written), ("remove", recovery.removed), ("keep aside", recovery.kept)):
        lines += [f"  {what:<10} {name}" for name in names]
    if recovery.is_done:
        lines.append(f"Done. What was replaced lies in {recovery.kept_in}; `pgonce recover --undo` brings it back.")
    elif recovery.is_needed:
        lines.append("Nothing was changed. Stop the query everywhere, and give --yes to do it.")
    return lines


def accept(
    query: Query,
    *,
    batch: Annotated[int, typer.Option(min=0, help="The batch that Spark runs next, and that is refused.")],
    reason: Annotated[str, typer.Option(help="Why this batch may follow; the ledger keeps it.")],
    url: Url = "",
    sink: Sink = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="The query's checkpoint, if not where the ledger says.")
    ] = None,
    yes: Yes = False,
) -> None:
    """Let one batch through that is refused, once, where nothing can prove or mend it. Rows may be lost or doubled."""
    with errors_as_text():
        interventions.refuse_no_reason(reason)
        query_id, location, chosen = _chosen_sink(url, query, sink)
        interventions.refuse_gone(chosen)
        facts = _read_if_possible(checkpoint, location)
        interventions.refuse_accepted(chosen, batch)
        verdict = refused_verdict(query_id, facts, chosen, batch)
        typer.echo(
            show.printable(
                f"Query {query_id}, sink {chosen.sink_name}: stands at batch {chosen.last_batch_id}, end "
                f"{chosen.end_offsets}.\n"
                f"Batch {batch} would be refused as {verdict.name}: {verdict.value}.\n"
                "Accepted, its rows are published, whatever they are, and the stored offsets move to its end. Nothing "
                "proves that no row is lost or doubled."
            )
        )
        if yes:
            interventions.accept(url, chosen, batch, reason)
    typer.echo("Accepted, once: start the query." if yes else _NOT_DONE)


def retire(
    query: Query,
    *,
    url: Url = "",
    sink: Sink = None,
    reason: Annotated[str | None, typer.Option(help="Why; the ledger keeps it.")] = None,
    yes: Yes = False,
) -> None:
    """Say that a sink of a query is gone for good: it is refused if it comes back, and recovery leaves it out."""
    with errors_as_text():
        query_id, _, chosen = _chosen_sink(url, query, sink)
        interventions.refuse_gone(chosen)
        typer.echo(
            show.printable(
                f"Query {query_id}, sink {chosen.sink_name}: stands at batch {chosen.last_batch_id}.\nRetired, it is "
                "refused for good, and left out where a checkpoint is compared with the ledger."
            )
        )
        if yes:
            interventions.retire(url, chosen, reason)
    typer.echo("Retired." if yes else _NOT_DONE)


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
    """Take a query out of the way of a new one that loads its tables from the beginning; rows stay, so empty them."""
    with errors_as_text():
        found = forget_query(
            query, url, reason=reason, sink=sink, dry_run=not yes, quiet_seconds=quiet_for, wait_seconds=wait
        )
        lines = [*_forget_lines(found), "Forgotten. Start the new query on a new checkpoint." if yes else _NOT_DONE]
        typer.echo(show.printable("\n".join(lines)))


def _forget_lines(found: Forgetting) -> list[str]:
    lines = [f"Query {found.query_id} ({found.query_name or 'no name'}):"]
    lines += [f"  sink {sink.sink_name}: stands at batch {sink.last_batch_id}" for sink in found.sinks]
    lines.append(
        "Forgotten, it is refused (FENCED) if it comes back, and a new query may feed this from the beginning of its "
        "source.\nThe rows stay where they are, and would be doubled by a query that reads the same again. So empty "
        "the tables before you start it:"
    )
    lines += [f"  TRUNCATE {name};" for name in sorted({name for names in found.tables.values() for name in names})]
    lines += [
        f"  (and what was written as {name}: which tables these are, nobody has recorded)"
        for name, tables in found.tables.items()
        if not tables
    ]
    lines += [
        f"But {name} is fed by {', '.join(others)} too: their rows would go with it, and not come again."
        for name, others in found.others.items()
        if others
    ]
    return lines


def new_checkpoint(
    query: Query,
    path: Annotated[str, typer.Argument(help="Where to write it; nothing may lie there.")],
    *,
    url: Url = "",
    quiet_for: QuietFor = QUIET_SECONDS,
    wait: Wait = 0,
    yes: Yes = False,
) -> None:
    """Write a checkpoint from the ledger, for a stateless query whose own is lost: same query id, same batch."""
    with errors_as_text():
        plan = rebuilding.new_checkpoint(query, path, url, dry_run=not yes, quiet_seconds=quiet_for, wait_seconds=wait)
        lines = [f"Query {plan.query_id}: {plan.does}, at {path}.", *(f"  write      {name}" for name, _ in plan.files)]
        lines.append("Done. Start the query with this checkpointLocation." if yes else _NOT_DONE)
        typer.echo(show.printable("\n".join(lines)))


_NOT_DONE = "Nothing was changed. Give --yes to do it."


def _chosen_sink(url: str, query: str, sink: str | None) -> tuple[str, str | None, SinkFacts]:
    """The query's id, where the ledger says that its checkpoint is, and the one sink that is meant."""
    store = OffsetsStore(url)
    writer = store.latest(query, sink)
    with store._reading() as connection:
        sinks = read_sinks(
            connection, writer.query_id, range(max(0, (writer.batch_id or 0) - 100), writer.batch_id or 0)
        )
    chosen = next(found for found in sinks if found.sink_name == writer.sink_name)
    return writer.query_id, writer.checkpoint_location, chosen


def _read_if_possible(given: str | None, recorded: str | None) -> CheckpointFacts | None:
    if given is not None:
        named = read_checkpoint(open_location(given))
        if named.query_id is None:
            raise no_checkpoint(named)
        return named
    try:
        found = read_checkpoint(open_location(recorded)) if recorded else None
    except CheckpointError:
        return None
    return found if found is not None and found.query_id is not None else None
