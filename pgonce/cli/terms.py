"""
Define what all commands share: exit codes, options, errors as text, and where the password comes from.

Runs in a shell, without Spark. Invariant: an error goes to stderr as text, never with a password, and the exit code
says which kind of error it was. A password is never an argument.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated, Any

import typer

from pgonce.offsets_store.errors import (
    BrokersError,
    CheckpointError,
    ConfigurationError,
    NotFoundError,
    NotInstalledError,
    OffsetsError,
    PgonceError,
    RecoveryError,
    RunningQueryError,
)
from pgonce.offsets_store.log_lines import scrub
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl

from .answers.output import print_error


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
    UNHEALTHY = 10


EXIT_CODES = {
    ExitCode.OK: "the answer is on stdout; with doctor: checkpoint and ledger agree",
    ExitCode.FAILED: "Postgres or Kafka gave an error, or the ledger is missing, too new or not permitted",
    ExitCode.USAGE: "the command line or the connection string cannot be read",
    ExitCode.NOT_FOUND: "no query, sink or dead letter has that name or id, or several queries have",
    ExitCode.NO_ANSWER: "the stored offsets cannot answer this (no Kafka source, offsets unknown, query replaced)",
    ExitCode.RECOVERABLE: "doctor: the next start would be refused or fail, and `pgonce recover` repairs that",
    ExitCode.NEEDS_PERSON: "nothing proves what to do, or what was asked is refused: a person must decide",
    ExitCode.UNREADABLE: "there is no checkpoint, or it cannot be read or written",
    ExitCode.RUNNING: "the query seems to run",
    ExitCode.NOT_FIT: "check: a promise would not hold on this server",
    ExitCode.UNHEALTHY: "health: something critical needs attention, or a query is beyond a bound that was given",
}
# The first family that an error belongs to says its exit code.
BY_FAMILY: tuple[tuple[type[PgonceError], ExitCode], ...] = (
    (NotInstalledError, ExitCode.FAILED),
    (ConfigurationError, ExitCode.USAGE),
    (RunningQueryError, ExitCode.RUNNING),
    (RecoveryError, ExitCode.NEEDS_PERSON),
    (CheckpointError, ExitCode.UNREADABLE),
    (BrokersError, ExitCode.FAILED),
    (NotFoundError, ExitCode.NOT_FOUND),
    (OffsetsError, ExitCode.NO_ANSWER),
    (PgonceError, ExitCode.FAILED),
)

Url = Annotated[
    str,
    typer.Option(
        envvar="PGONCE_URL",
        help="A libpq URI or key=value string. Without it, libpq's environment variables are used (PGHOST, "
        "PGSERVICE, ...).",
    ),
]
Wide = Annotated[bool, typer.Option("--wide", help="Show whole ids and everything else that makes lines long.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON with stable keys, for programs.")]
Query = Annotated[
    str,
    typer.Argument(help="The name of the query, its id, or the beginning of the id, as `pgonce status` shows them."),
]
Sink = Annotated[str | None, typer.Option(help="The name of the sink, if the query has several.")]

Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without this option, only show what would be done.")]
QuietFor = Annotated[
    float,
    typer.Option(min=0, help="Seconds for which the query must have written nothing: a running query would write."),
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
        print_error(scrub(f"Error: {error}"))
        raise typer.Exit(exit_code(error)) from None


def exit_code(error: PgonceError) -> ExitCode:
    """The exit code for an error: it says which kind of error it was."""
    return next(code for family, code in BY_FAMILY if isinstance(error, family))


class Application(typer.Typer):
    """Commands, whose errors are shown as text; those that have a ``url`` know where its password comes from."""

    def command(self, name: str | None = None, **how: Any) -> Callable[[Any], Any]:
        """Register a command, as :meth:`typer.Typer.command` does."""
        register = super().command(name, **how)

        def registered(function: Callable[..., None]) -> Callable[..., None]:
            register(errors_as_text()(_told_where_passwords_are(function)))
            return function

        return registered


def _told_where_passwords_are(function: Callable[..., None]) -> Callable[..., None]:
    """``function``, whose ``url`` has the source of its password, if the environment names one."""
    if "url" not in inspect.signature(function).parameters:
        return function

    @functools.wraps(function)
    def run(url: str, **rest: Any) -> None:
        # Typer passes everything by name.
        function(url=PostgresUrl(url, os.environ.get("PGONCE_PASSWORD_FROM")), **rest)

    return run
