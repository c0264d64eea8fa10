"""
What all commands of ``pgonce`` share: exit codes, options, and errors as text.

Runs in a shell, without Spark. Invariant: an error goes to stderr as text, never with a password, and the exit code
says which kind of error it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated, NoReturn

import typer

from pgonce.offsets_store.errors import (
    CheckpointError,
    ConfigurationError,
    OffsetsError,
    PgonceError,
    RecoveryError,
)
from pgonce.offsets_store.postgres.translate import scrub

from .output import print_error


class ExitCode(IntEnum):
    """What the exit code of ``pgonce`` means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    NO_ANSWER = 4
    RECOVERABLE = 5
    NEEDS_PERSON = 6
    UNREADABLE = 7
    RUNNING = 8
    NOT_FIT = 9


EXIT_CODES = {
    ExitCode.OK: "the answer is on stdout; with doctor: checkpoint and ledger agree",
    ExitCode.FAILED: "Postgres or Kafka gave an error, or the ledger is missing, too new or not permitted",
    ExitCode.USAGE: "the command line or the connection string cannot be read",
    ExitCode.NOT_FOUND: "no query, sink or dead letter has that name or id, or several queries have",
    ExitCode.NO_ANSWER: "the stored offsets cannot answer this (no Kafka source, offsets unknown, query replaced)",
    ExitCode.RECOVERABLE: "doctor: the next start would be refused or fail, and `pgonce recover` repairs that",
    ExitCode.NEEDS_PERSON: "nothing proves what to do, or what was asked is refused: a person must decide; with doctor "
    "also: it depends on what neither checkpoint nor ledger says",
    ExitCode.UNREADABLE: "there is no checkpoint, or it cannot be read or written",
    ExitCode.RUNNING: "the query seems to run",
    ExitCode.NOT_FIT: "check: a promise would not hold on this server",
}
_NOT_FOUND = {
    "QUERY_NOT_FOUND",
    "QUERY_AMBIGUOUS",
    "SINK_NOT_FOUND",
    "SINK_NEEDED",
    "DEAD_LETTER_NOT_FOUND",
    "DEAD_LETTERS_TABLE",
}
_FOR_A_PERSON = {"GROUP_IN_USE", "GROUP_NOT_OURS"}
_SOMETHING_IS_NOT_INSTALLED = {"NO_KAFKA_CLIENT", "NO_PYSPARK"}

Url = Annotated[
    str,
    typer.Option(
        envvar="PGONCE_URL",
        help="A libpq URI or key=value string. Without it, libpq's environment counts (PGHOST, PGSERVICE, ...).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys, for programs.")]
Query = Annotated[
    str,
    typer.Argument(help="The name of the query, its id, or the beginning of the id, as `pgonce status` shows them."),
]
Sink = Annotated[str | None, typer.Option(help="The name of the sink, if the query has several.")]

Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without this option, only show what would be done.")]
QuietFor = Annotated[
    float,
    typer.Option(min=0, help="Seconds for which the query must have written nothing, because a running one writes."),
]
Wait = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds to wait, at most, for Postgres to answer and for all signs of a running query to end."
    ),
]

NOT_DONE = "Nothing was changed. Give --yes to do it."


@contextmanager
def errors_as_text() -> Iterator[None]:
    """Turn an error of the block into its text on stderr and its exit code."""
    try:
        yield
    except PgonceError as error:
        _fail(error)


def _fail(error: PgonceError) -> NoReturn:
    print_error(scrub(f"Error: {error}"))
    raise typer.Exit(exit_code(error)) from None


def exit_code(error: PgonceError) -> ExitCode:
    """The exit code for an error: it says which kind of error it was."""
    if isinstance(error, ConfigurationError):
        return ExitCode.FAILED if error.code in _SOMETHING_IS_NOT_INSTALLED else ExitCode.USAGE
    if isinstance(error, RecoveryError):
        return ExitCode.RUNNING if error.code == "RECOVERY_RUNNING" else ExitCode.NEEDS_PERSON
    if error.code in _FOR_A_PERSON:
        return ExitCode.NEEDS_PERSON
    if isinstance(error, CheckpointError):
        return ExitCode.UNREADABLE
    if not isinstance(error, OffsetsError) or error.code in {"KAFKA_UNREACHABLE", "KAFKA_REFUSED"}:
        return ExitCode.FAILED
    return ExitCode.NOT_FOUND if error.code in _NOT_FOUND else ExitCode.NO_ANSWER
