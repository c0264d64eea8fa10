"""
``pgonce``: its commands that ask the ledger and prepare it, and the application to which all commands belong.

Runs in a shell, without Spark. Invariant: an answer goes to stdout and an error to stderr, as text. The exit code says
which kind of error it was, and no password is ever shown.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import psycopg
import typer

from pgonce.offsets_store.ledger.migrations import init_sql, migrate, refuse_owner
from pgonce.offsets_store.ledger.restored import follow_restore_in_tx
from pgonce.offsets_store.postgres.bounds import LOCK_SECONDS, enter_in_tx
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.lock_watch import LockWatch
from pgonce.offsets_store.postgres.translate import ledger_error

from . import offsets, recover, status
from .answers import output
from .check import check
from .dead_letters import dead_letters
from .doctor import doctor
from .errors import errors
from .explain import explanation, nearest
from .serve import serve
from .terms import EXIT_CODES, Application, ExitCode, Url

app = Application(
    help="Exactly-once PostgreSQL for Spark Structured Streaming: what the ledger knows.",
    epilog="Exit codes: " + "; ".join(f"{int(code)}: {meaning}" for code, meaning in EXIT_CODES.items()) + ".",
    no_args_is_help=True,
    # A traceback with local variables would show connection strings.
    pretty_exceptions_enable=False,
)


@app.command()
def init(
    url: Url = "",
    sql: Annotated[bool, typer.Option("--sql", help="Only print the SQL, for an administrator to run.")] = False,
    role: Annotated[
        str | None, typer.Option(help="Also grant this role the privileges that a streaming query needs.")
    ] = None,
) -> None:
    """Create the ledger, or bring it up to date. Run it again after each upgrade; it never changes anything twice."""
    if sql:
        typer.echo(init_sql(role), nl=False)
        return
    with output.at_work("Preparing the ledger"):
        applied = _init(url, role)
    done = f"applied version {', '.join(map(str, applied))}" if applied else "was up to date already"
    typer.echo(f"The ledger (schema pgonce) {done}." + (f" Role {role} may use it." if role else ""))


@app.command()
def explain(
    code: Annotated[str, typer.Argument(help="An error's code, as TYPE_MISMATCH.")],
) -> None:
    """Show what an error means, and what to do."""
    text = explanation(code)
    if text is None:
        near = ", ".join(nearest(code))
        where = f"There is {near}." if near else "Page `errors` of the documentation has all codes."
        raise typer.BadParameter(f"there is no code {code!r}. {where}")
    typer.echo(text)


def _init(url: str, role: str | None) -> list[int]:
    with connect(url, autocommit=True) as connection:
        try:
            refuse_owner(connection)
            applied = migrate(connection, LockWatch(url, LOCK_SECONDS, armed=True), role)
            with connection.transaction():
                enter_in_tx(connection)
                follow_restore_in_tx(connection)
        except psycopg.Error as error:
            raise ledger_error(error, "preparing the ledger") from error
    return applied


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if show_version:
        typer.echo(version("pgonce"))
        raise typer.Exit(ExitCode.OK)


app.command()(status.status)
app.command()(status.health)
app.command()(offsets.offsets)
app.command()(offsets.history)
app.command()(recover.recover)
app.command()(recover.accept)
app.command()(recover.retire)
app.command()(recover.forget)
app.command()(check)
app.command()(doctor)
app.command()(errors)
app.command("dead-letters")(dead_letters)
app.command()(serve)


def main() -> None:
    """Run the command line; the entry point of the distribution."""
    app()
