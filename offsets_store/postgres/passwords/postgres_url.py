"""
Which database is meant, and where does the password for it come from?

Pure: runs wherever settings are made. Invariant: it names the source of a password and never holds one that came from
there, so it may be pickled, compared and sent to executors.
"""

from __future__ import annotations

import re
import shlex

from psycopg import Error
from psycopg.conninfo import conninfo_to_dict
from typing_extensions import Self

from ...errors import bad_option

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class PostgresUrl(str):
    """
    A connection string, together with the source of its password.

    It goes wherever a ``url`` goes: ``recover_checkpoint(path, PostgresUrl(url, password_from="module:function"))``.

    :param url: a libpq URI or key=value string without a password; empty for libpq's environment.
    :param password_from: ``module:function``, called for each new connection with a
        :class:`~pgonce.offsets_store.postgres.passwords.login.Login`; it returns the password.
    :param password_command: a command, run for each new connection without a shell; it prints the password.
    :raises ConfigurationError: CLASHING_OPTIONS, BAD_OPTION.
    """

    # Two strings with the same text and other sources must not share a pool, so both are compared.
    __slots__ = ("password_command", "password_from")
    password_from: str | None
    password_command: str | None

    def __new__(cls, url: str = "", password_from: str | None = None, password_command: str | None = None) -> Self:
        """Check what can be checked without calling anything."""
        if isinstance(url, PostgresUrl):
            password_from = password_from or url.password_from
            password_command = password_command or url.password_command
        made = super().__new__(cls, url)
        made.password_from, made.password_command = password_from or None, password_command or None
        _check(str(url), made.password_from, made.password_command)
        return made

    @property
    def has_source(self) -> bool:
        """Whether the password comes from a function or a command."""
        return bool(self.password_from or self.password_command)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str.__eq__(self, other) and self._source == _source_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str.__str__(self), self._source)) if self.has_source else str.__hash__(self)

    def __getnewargs__(self) -> tuple[str, str | None, str | None]:  # type: ignore[override]
        return str.__str__(self), self.password_from, self.password_command

    @property
    def _source(self) -> tuple[str | None, str | None]:
        return self.password_from, self.password_command


def with_source_of(url: str, other: str) -> PostgresUrl:
    """The connection string ``other``, whose password comes from where that of ``url`` does."""
    return PostgresUrl(other, *_source_of(url))


def _source_of(url: str) -> tuple[str | None, str | None]:
    return (url.password_from, url.password_command) if isinstance(url, PostgresUrl) else (None, None)


def _check(url: str, password_from: str | None, password_command: str | None) -> None:
    if password_from and password_command:
        raise bad_option("CLASHING_OPTIONS", "passwordFrom and passwordCommand are both set.", "Keep one of them.")
    if password_from and not _FUNCTION.fullmatch(password_from):
        raise bad_option(
            "BAD_OPTION",
            f"passwordFrom={password_from!r} does not name a function.",
            'Write "module:function", for example "pgonce.tokens:aws_rds" or "my_company.postgres:password".',
        )
    if password_command and not command_words(password_command):
        raise bad_option("BAD_OPTION", "passwordCommand names no command.", "Give a program and its arguments.")
    if (password_from or password_command) and _has_password(url):
        raise bad_option(
            "CLASHING_OPTIONS",
            f"url holds a password, and {'passwordFrom' if password_from else 'passwordCommand'} is set too.",
            "Take the password out of url, or leave the other option out.",
        )


def command_words(command: str) -> list[str]:
    """
    The program and the arguments that a ``passwordCommand`` names, read as a shell reads words.

    :raises ConfigurationError: BAD_OPTION, where a quotation mark is not closed, or where a shell would set a variable.
        The text is not shown, because a variable may be a secret.
    """
    words, why = [], ""
    try:
        words = shlex.split(command)
    except ValueError as error:
        why = str(error)
    if not why and not (words and _ASSIGNMENT.match(words[0])):
        return words
    if not why:
        raise bad_option(
            "BAD_OPTION",
            f"passwordCommand begins with {words[0].partition('=')[0]}=..., which sets a variable in a shell; but no "
            "shell reads it.",
            "Begin with a program, and let the process that connects have the variable in its environment.",
        )
    raise bad_option(
        "BAD_OPTION", f"passwordCommand cannot be split into words: {why}.", "Close the quotation marks in it."
    )


def _has_password(url: str) -> bool:
    try:
        return "password" in conninfo_to_dict(url)
    except (Error, UnicodeError):
        # Whoever connects says what is wrong with it.
        return False
