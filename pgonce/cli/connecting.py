"""
How does a command of ``pgonce`` learn where the password comes from?

Runs in a shell, without Spark. Invariant: every command that takes ``--url`` takes this option too, and a password is
never an argument.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer

from pgonce.offsets_store.postgres.passwords.postgres_url import PostgresUrl

from .terms import errors_as_text

PasswordFrom = Annotated[
    str | None,
    typer.Option(
        envvar="PGONCE_PASSWORD_FROM",
        help="A function, module:function, that returns the password for each new connection.",
    ),
]


class Application(typer.Typer):
    """Commands; each one that has a ``url`` may also be told where the password comes from."""

    def command(self, name: str | None = None, **how: Any) -> Callable[[Any], Any]:
        """Register a command, as :meth:`typer.Typer.command` does."""
        register = super().command(name, **how)

        def registered(function: Callable[..., None]) -> Callable[..., None]:
            register(_told_where_passwords_are(function))
            return function

        return registered


def _told_where_passwords_are(function: Callable[..., None]) -> Callable[..., None]:
    """``function``, with the option after ``url`` that says so; what it gets is one ``url``."""
    parameters = list(inspect.signature(function, eval_str=True).parameters.values())
    names = [parameter.name for parameter in parameters]
    if "url" not in names:
        return function

    @functools.wraps(function)
    def run(url: str, password_from: str | None, **rest: Any) -> None:
        with errors_as_text():
            given = PostgresUrl(url, password_from)
        function(url=given, **rest)

    source = inspect.Parameter("password_from", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=PasswordFrom)
    parameters.insert(names.index("url") + 1, source)
    # Typer passes everything by name.
    named = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in named}
    return run
