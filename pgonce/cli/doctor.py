"""
The command ``pgonce doctor`` tells what happens at the next start, and what repairs it.

Runs in a shell, without pyspark, under a role that may read the ledger. Invariant: it changes nothing. It does not look
at tables: ``pgonce check --query`` does, under the role that writes to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timezone
from pathlib import Path
from typing import Annotated

import typer

from pgonce.offsets_store.checkpoint.files import CheckpointFiles
from pgonce.offsets_store.errors import NoLedgerError, OldLedgerError
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.log_lines import in_command, one_line
from pgonce.offsets_store.status.states import query_states
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.status.stored import last_to_publish
from pgonce.recovery.doctor import Diagnosis, Finding, examine
from pgonce.recovery.read_stopped_query import own_files

from .answers.output import offsets_text, print_json, print_lines, text_of
from .terms import ExitCode, Json, Url

CheckpointOrQuery = Annotated[
    str,
    typer.Argument(
        metavar="QUERY|CHECKPOINT",
        help="The query, as `pgonce status` shows it, or its checkpointLocation, which has a slash.",
    ),
]

_EXIT_CODES = {
    Finding.AGREE: ExitCode.OK,
    Finding.RECOVERABLE: ExitCode.RECOVERABLE,
    Finding.NEEDS_PERSON: ExitCode.NEEDS_PERSON,
}


def doctor(checkpoint: CheckpointOrQuery, *, url: Url = "", as_json: Json = False) -> None:
    """
    Compare a checkpoint with the ledger: say what happens at the next start, and what repairs it.

    Give the query as `pgonce status` shows it, or the place of its checkpoint.
    """
    place: str | CheckpointFiles = checkpoint
    # A place has a slash, or a checkpoint is there. A query goes by its name or id.
    if "/" not in checkpoint and not (Path(checkpoint) / "metadata").exists():
        writer = last_to_publish([writer for writer, _ in OffsetsStore(url).status_of(checkpoint)])
        place = own_files(writer.query_id, writer.checkpoint_location)
    found = examine(place, url)
    if found.query_id:
        found = replace(found, remarks=(*found.remarks, *_failures(url, found.query_id)))
    if as_json:
        print_json(found.record())
    else:
        print_lines(_lines(found))
    raise typer.Exit(_EXIT_CODES[found.finding])


def _failures(url: str, query_id: str) -> Iterator[str]:
    """What has gone wrong with the query since its last batch, if the ledger tells it."""
    with suppress(NoLedgerError, OldLedgerError), reading(url) as connection:
        for one in query_states(connection, [query_id]):
            if one.failing_since:
                batch = "" if one.failed_batch_id is None else f"batch {one.failed_batch_id}, "
                when = f"{batch}{one.failing_since.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
                said = one_line(" ".join(f"{one.failure_code}, {one.failure_message or ''} {one.help or ''}".split()))
                yield f"Last failure ({when}): {said}"


def _lines(found: Diagnosis) -> list[str]:
    again = "which is planned already" if found.runs_again else "which is not planned yet"
    begins, ends = (offsets_text(at).replace("\n", ", ") for at in (found.begins, found.ends))
    return [
        f"Checkpoint {found.location} of query {text_of(found.query_id)}:",
        f"  offsets/ ends with batch {text_of(found.newest_offsets)}, commits/ with {text_of(found.newest_commit)}.",
        *(
            f"Sink {sink.sink_name}: last batch {sink.last_batch_id}, end "
            + offsets_text(sink.end_offsets).replace("\n", ", ")
            for sink in found.sinks
        ),
        f"Next start: batch {found.next_batch_id}, {again}, from {begins} to {ends}.",
        *(f"  {sink.sink_name}: {sink.verdict.name}, {sink.says}" for sink in found.sinks),
        *found.remarks,
        found.advice,
        *([_not_looked_at(found.query_id)] if found.sinks else []),
    ]


def _not_looked_at(query_id: str | None) -> str:
    command = f"`pgonce check --query {in_command(query_id, 'QUERY')}`"
    return f"Not looked at: the query's tables. {command} looks at them, under the role of its url."
