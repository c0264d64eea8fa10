"""
The command ``pgonce doctor`` tells what happens at the next start, and what repairs it.

Runs in a shell, without Spark, under a role that may read the ledger. Invariant: it changes nothing. The tables are
looked at with pyspark's types; where pyspark is missing, the command says that it has not looked at them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timezone
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.checkpoint.files import CheckpointFiles
from pgonce.offsets_store.errors import (
    NoLedgerError,
    NotInstalledError,
    OldLedgerError,
    PgonceError,
    RecoveryError,
    needing_pyspark,
)
from pgonce.offsets_store.ledger.published import changed_targets
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.log_lines import one_line, scrub
from pgonce.offsets_store.status.read_stored import LastWritten, last_written
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
    tables = _tables(url, found.query_id)
    if found.query_id:
        found = replace(found, remarks=(*found.remarks, *_failures(url, found.query_id)))
    if refused := [(each.table, each.refused) for each in tables if each.refused]:
        found = _refused(found, *refused[0])
    if as_json:
        shown = ("sink_name", "table", "code", "says")
        print_json({**found.record(), "tables": [{key: getattr(each, key) for key in shown} for each in tables]})
    else:
        print_lines(_lines(found, tables))
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


_BOUNDS = (
    "SELECT pg_catalog.set_config('statement_timeout', '10s', true), pg_catalog.set_config('lock_timeout', '2s', true)"
)


@dataclass(frozen=True)
class Looked:
    """
    One table of a sink, as the next commit will find it.

    ``refused`` is the error that the commit would raise, and ``unknown`` says why that could not be found out; both are
    None if it would raise none. ``changed`` is a sentence if this is not the table that earlier batches went into. Not
    ``is_there`` means that the commit would create it.
    """

    sink_name: str
    table: str
    batch_id: int
    refused: PgonceError | None = None
    unknown: str | None = None
    changed: str | None = None
    is_there: bool = True

    @property
    def code(self) -> str | None:
        """The error's code, if there is one."""
        return self.refused.code if self.refused else None

    @property
    def says(self) -> str:
        """What is known, as a sentence without its end."""
        if self.refused:
            return self.refused.what
        if self.unknown:
            return f"not checked: {self.unknown}"
        if not self.is_there:
            return "it is not there, and the next batch creates it, without the rows of earlier batches (createTable)"
        takes = f"it can take rows with the columns of batch {self.batch_id}"
        if self.changed:
            return f"{takes}. {self.changed} With pinTable, the next batch is refused"
        return takes


def look_again(url: str, sinks: Sequence[LastWritten], *, of_this_role: bool) -> list[Looked]:
    """
    Check each table of these sinks with the columns of its last batch, as the commit does, without a lock.

    Nothing of a record becomes part of a statement before it was checked.

    :param of_this_role: whether the session has the role that will write, so that its privileges count.
    :raises ConfigurationError: NOT_INSTALLED.
    :raises ConnectError: if Postgres cannot be reached.
    """
    with needing_pyspark("Tables are checked with pyspark's types, as a commit checks them", "Nothing was written."):
        from pgonce.sink.writing.bad_rows.recalled_destination import recalled_to_look
        from pgonce.sink.writing.first_look import look_at_table, looking

    def look(connection: psycopg.Connection, sink: LastWritten, name: str, record: object) -> Looked:
        try:
            destination, columns = recalled_to_look(record)
            connection.execute(_BOUNDS)
            table = look_at_table(connection, destination, columns, rooms=EVERY_ROOM, of_this_role=of_this_role)
        except RecoveryError as error:
            return Looked(sink.sink_name, name, sink.batch_id, unknown=error.what)
        except PgonceError as error:
            return Looked(sink.sink_name, name, sink.batch_id, refused=error)
        except psycopg.Error as error:
            said = scrub(" ".join((error.diag.message_primary or str(error)).split()))
            return Looked(sink.sink_name, name, sink.batch_id, unknown=f"Postgres says: {said}")
        finally:
            connection.rollback()
        now = {table.qualified_name: table.oid} if table else {}
        changed = changed_targets(sink.oids, now, is_one_table=False).get(name)
        return Looked(sink.sink_name, name, sink.batch_id, changed=changed, is_there=table is not None)

    found = []
    if any(sink.tables for sink in sinks):
        with looking(url) as connection:
            for sink in sinks:
                found += [look(connection, sink, name, record) for name, record in sorted(sink.tables.items())]
    why = "no batch has recorded how its rows were written"
    unrecorded = (sink for sink in sinks if not sink.tables)
    return [*found, *(Looked(sink.sink_name, sink.sink_name, sink.batch_id, unknown=why) for sink in unrecorded)]


def _tables(url: str, query_id: str | None) -> list[Looked]:
    sinks = last_written(url, query_id) if query_id else []
    try:
        return look_again(url, sinks, of_this_role=False) if sinks else []
    except NotInstalledError as error:
        return [
            Looked(sink.sink_name, name, sink.batch_id, unknown=error.what) for sink in sinks for name in sink.tables
        ]


def _refused(found: Diagnosis, table: str, error: PgonceError) -> Diagnosis:
    """The same, where the next batch that is published ends with an error."""
    advice = (
        f"But the next batch into {table} is refused ({error.code}), unless the query's columns or options have "
        f"changed since its last one. {error.remedy}"
    )
    finding = Finding.NEEDS_PERSON if found.finding is Finding.AGREE else found.finding
    return replace(found, finding=finding, advice=f"{found.advice} {advice}")


_NOT_CHECKED = (
    "Not checked: the privileges of the query's role (`pgonce check --query` checks them), and the SQL of functions "
    "and triggers."
)


def _lines(found: Diagnosis, tables: Sequence[Looked]) -> list[str]:
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
        *(
            f"  table {table.table}: {table.code + ', ' if table.code else ''}{table.says.rstrip('.')}."
            for table in tables
        ),
        *found.remarks,
        found.advice,
        *([_NOT_CHECKED] if tables else []),
    ]
