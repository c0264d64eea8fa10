"""
A connection string with the source of its password, and the login that such a source is asked for.

Pure: runs where settings are made. Invariant: neither holds a password that came from the source, so they may be
pickled, compared and sent to executors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from typing_extensions import Self

from ..errors import bad_option


@dataclass(frozen=True)
class Login:
    """
    One login that is about to be tried.

    :param host: the name of the host, as url, service file or ``PGHOST`` give it; the folder of a Unix socket, or empty
        for libpq's own. With several hosts, the one that is tried now.
    :param port: its port.
    :param user: the role.
    :param dbname: the database.
    :param refused: whether Postgres has just refused the password that was given for this login. A function that keeps
        tokens for a while must make a new one then.
    """

    host: str
    port: int
    user: str
    dbname: str
    refused: bool = False


_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")


class PostgresUrl(str):
    """
    A connection string, together with the source of its password.

    It can be given for every ``url``: ``recover_checkpoint(path, PostgresUrl(url, password_from="module:function"))``.

    :param url: a libpq URI or key=value string without a password; empty for libpq's environment.
    :param password_from: ``module:function``, called for each new connection with a
        :class:`~pgonce.offsets_store.postgres.postgres_url.Login`; it returns the password.
    :raises ConfigurationError: CLASHING_OPTIONS, BAD_OPTION.
    """

    # Two strings with the same text and other sources must not share a pool, so both are compared.
    __slots__ = ("password_from",)
    password_from: str | None

    def __new__(cls, url: str = "", password_from: str | None = None) -> Self:
        """Check what can be checked without calling anything."""
        made = super().__new__(cls, url)
        made.password_from = password_from or source_of(url)
        _check(str(url), made.password_from)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, str) and str.__eq__(self, other) and self.password_from == source_of(other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((str.__str__(self), self.password_from)) if self.password_from else str.__hash__(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle it so that a task, which gets what was checked elsewhere, needs no libpq to make it again."""
        return _checked_before, (str.__str__(self), self.password_from)


def _checked_before(url: str, password_from: str | None) -> PostgresUrl:
    made = str.__new__(PostgresUrl, url)
    made.password_from = password_from
    return made


def source_of(url: str) -> str | None:
    """The function from which the password comes, if it comes from one."""
    return url.password_from if isinstance(url, PostgresUrl) else None


def _check(url: str, password_from: str | None) -> None:
    if password_from and not _FUNCTION.fullmatch(password_from):
        raise bad_option(
            "BAD_OPTION",
            "passwordFrom does not name a function. (Its value is not shown here, because it may be a password.)",
            'Write "module:function", for example "my_company.postgres:password".',
        )
    if password_from and _has_password(url):
        raise bad_option(
            "CLASHING_OPTIONS",
            "A connection string (url or executorUrl) holds a password, and passwordFrom is set too.",
            "Take the password out of the connection string, or leave passwordFrom out.",
        )


def _has_password(url: str) -> bool:
    from psycopg import Error
    from psycopg.conninfo import conninfo_to_dict

    try:
        return "password" in conninfo_to_dict(url)
    except (Error, UnicodeError):
        # The connection attempt says what is wrong with it.
        return False
