"""
The command ``pgonce doctor`` tells what happens at the next start, and what repairs it.

Runs in a shell, without Spark, under a role that may read the ledger. Invariant: it changes nothing. The tables are
looked at with pyspark's types; where pyspark is missing, the command says that it has not looked at them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from pgonce.offsets_store.errors import ConfigurationError, PgonceError
from pgonce.offsets_store.recovery.doctor import Diagnosis, Finding, examine
from pgonce.offsets_store.recovery.next_start import ANY_SINK
from pgonce.offsets_store.status.read_stored import last_written

from .output import offsets_text, print_json, print_lines, text_of
from .recover import CheckpointPath
from .terms import ExitCode, Json, Url, errors_as_text, needing_pyspark

_EXIT_CODES = {
    Finding.AGREE: ExitCode.OK,
    Finding.RECOVERABLE: ExitCode.RECOVERABLE,
    Finding.NEEDS_PERSON: ExitCode.NEEDS_PERSON,
    Finding.UNCERTAIN: ExitCode.NEEDS_PERSON,
}


@dataclass(frozen=True)
class TableStanding:
    """One table: what the next commit will say to it (``code`` is an error's), or why that is not known."""

    sink_name: str
    table: str
    code: str | None
    says: str


def doctor(
    checkpoint: CheckpointPath,
    *,
    url: Url = "",
    sink: Annotated[
        str | None,
        typer.Option(help="The sink that the query will write to, if the ledger does not know the query yet."),
    ] = None,
    query_name: Annotated[
        str | None, typer.Option(help="The queryName of a query that the ledger does not know yet.")
    ] = None,
    as_json: Json = False,
) -> None:
    """
    Compare a checkpoint with the ledger: say what happens at the next start, and what repairs it.

    Exit code 0: they agree; 5: `pgonce recover` repairs it; 6: a person must decide, or it depends on what is not
    written down anywhere; 7: the checkpoint cannot be read.
    """
    with errors_as_text():
        found = examine(checkpoint, url, sink=sink, query_name=query_name)
        tables, refused = _tables(url, found)
        if refused:
            found = _refused(found, refused)
        if as_json:
            print_json({**found.record(), "tables": [vars(table) for table in tables]})
        else:
            print_lines(_lines(found, tables))
    raise typer.Exit(_EXIT_CODES[found.finding])


def _tables(url: str, found: Diagnosis) -> tuple[list[TableStanding], list[tuple[str, PgonceError]]]:
    """Each table of the query, and the errors with which the next batch would end."""
    sinks = last_written(url, found.query_id) if found.query_id else []
    if not sinks:
        return [], []
    try:
        with needing_pyspark(
            "Tables are checked with pyspark's types, as a commit checks them", "Nothing was written."
        ):
            from pgonce.sink.writing.last_written import look_again
    except ConfigurationError as error:
        why = f"not checked: {error.what}"
        return [TableStanding(sink.sink_name, name, None, why) for sink in sinks for name in sink.tables], []
    looked = look_again(url, sinks, of_this_role=False)
    standings = [
        TableStanding(each.sink_name, each.table, each.refused.code, each.refused.what)
        if each.refused
        else TableStanding(each.sink_name, each.table, None, _says(each.batch_id, each.unknown))
        for each in looked
    ]
    return standings, [(each.table, each.refused) for each in looked if each.refused]


def _says(batch_id: int, unknown: str | None) -> str:
    return f"not checked: {unknown}" if unknown else f"it can take rows with the columns of batch {batch_id}"


def _refused(found: Diagnosis, refused: Sequence[tuple[str, PgonceError]]) -> Diagnosis:
    """The same, where the next batch that is published ends with an error."""
    table, error = refused[0]
    advice = (
        f"But the next batch into {table} is refused ({error.code}), unless the query's columns or options have "
        f"changed since its last one. {error.remedy}"
    )
    finding = Finding.NEEDS_PERSON if found.finding is Finding.AGREE else found.finding
    return replace(found, finding=finding, advice=f"{found.advice} {advice}")


def _lines(found: Diagnosis, tables: Sequence[TableStanding]) -> list[str]:
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
        *(
            f"  table {table.table}: {table.code + ', ' if table.code else ''}{table.says.rstrip('.')}."
            for table in tables
        ),
        *found.remarks,
        found.advice,
        *_not_looked_at(tables),
    ]


def _not_looked_at(tables: Sequence[TableStanding]) -> list[str]:
    """What the answer leaves open."""
    if not tables:
        return []
    return [
        "Not checked: the privileges of the query's role (`pgonce check --query` checks them), and the SQL of "
        "functions and triggers."
    ]


def _sink_called(name: str) -> str:
    return "any other sink" if name == ANY_SINK else name
