"""
Connect this process to Postgres: single connections, and one pool for each connection string.

Runs in the driver, the commit worker, executors and the command line. Invariant: a connection is checked out for one
piece of work only, and no error of this module shows the connection string.
"""

from __future__ import annotations

import logging
import os
import re
import selectors
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from ..errors import ConfigurationError, ConnectError
from .bounds import LINE_BOUNDS, with_line_bounds
from .passwords import connect_asking, of_service
from .postgres_url import source_of
from .search_path import SET_OURS
from .translate import connect_error

# Imported where an engine is made: tasks that stage, and a first look at a table, use psycopg alone.
if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine


# When a COPY fails twice, psycopg logs what Postgres said of a row.
logging.getLogger("psycopg").addFilter(lambda record: not str(record.msg).startswith("error ignored"))

_DEFAULTS = {
    "connect_timeout": ("15", "PGCONNECT_TIMEOUT"),
    "fallback_application_name": ("pgonce", None),
}
# Rows are encoded as UTF-8, and COPY reads their bytes in the client's encoding. libpq's default for that is the
# database's encoding, and a LATIN1 database stored "é" as "Ã©".
_FORCED = {"client_encoding": "UTF8"}
# libpq ends a URI's password at the first "@" or "/". If a password contains one of these without percent-encoding, the
# rest of it becomes a host, a port or a database, which errors name.
_MISREAD_PASSWORD = re.compile(r"postgres(ql)?://([^@/]*@[^?]*|[^@/]*/[^?]*)@")


def parse_url(url: str) -> dict[str, Any]:
    """
    The connection parameters of ``url``: a libpq URI or key=value string; empty means libpq's environment.

    :raises ConfigurationError: if libpq cannot read it. The text is not repeated, because it may hold a password.
    """
    try:
        parameters = dict(conninfo_to_dict(url))
    except (psycopg.Error, UnicodeError):
        raise _bad_url() from None
    if _MISREAD_PASSWORD.match(url) or "\0" in url:
        raise _bad_url()
    parameters = {**of_service(parameters, [*_DEFAULTS, *LINE_BOUNDS]), **parameters}
    for name, (value, variable) in _DEFAULTS.items():
        if name not in parameters and not (variable and variable in os.environ):
            parameters[name] = value
    return with_line_bounds(parameters)


def _bad_url() -> ConfigurationError:
    return ConfigurationError.usual(
        "BAD_URL",
        "libpq cannot read the connection string in url, or would misread it. (It is not shown here, because it may "
        "have a password.)",
        "Write a URI (postgresql://user@host:5432/database) or key=value pairs (host=... dbname=...); percent-encode "
        "special characters in a URI (%40 for @, %2F for /), and drop prefixes such as jdbc: or +psycopg.",
    )


# The connection strings with which this process has connected before.
_let_in: set[str] = set()


def connect(url: str, **overrides: Any) -> psycopg.Connection:
    """
    A new connection, for one owner. The transactions that it begins are READ COMMITTED.

    :raises ConnectError: if none can be made.
    """
    was_let_in, parameters = url in _let_in, {**parse_url(url), **overrides, **_FORCED}
    source = source_of(url)
    try:
        if source is not None:
            connection = connect_asking(source, parameters, was_let_in=was_let_in)
        else:
            # Server-side prepared statements fail behind poolers that share sessions.
            connection = psycopg.connect(**parameters, prepare_threshold=None)
    except psycopg.Error as error:
        # Without its cause: psycopg's own text and frames may contain connection parameters.
        raise connect_error(error, was_let_in=was_let_in, asked=source is not None) from None
    _let_in.add(url)
    # Not the role's default: what is read under a lock has to show what was committed while the lock was waited for,
    # and a snapshot is older. (Two new queries have fed one sink, because neither saw the other.)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    return connection


MAX_CONNECTIONS = "PGONCE_MAX_CONNECTIONS"
"""The environment variable for how many connections to one url a process may have open at a time."""

# Two thirds of what Postgres's default max_connections allows to all clients.
DEFAULT_MAX_CONNECTIONS = 64
# This many stay open between two batches.
KEPT_CONNECTIONS = 4
# Even with many more queries than connections, no query waits for this long: a commit takes milliseconds.
FREE_CONNECTION_SECONDS = 30

_making_an_engine = Lock()


def engine_for(url: str) -> Engine:
    """
    The engine of this process for ``url``; its pool hands a connection to one owner at a time.

    :raises ConfigurationError: if the connection string, or :data:`MAX_CONNECTIONS`, cannot be read.
    """
    # Two threads that both miss the cache would each make an engine, and the one that is not kept has an open session.
    with _making_an_engine:
        return _engine(url, os.getpid())


@lru_cache(maxsize=32)
def _engine(url: str, _pid: int) -> Engine:
    # The process id is part of the key because a connection must not be shared with a forked worker.
    from sqlalchemy import event

    parse_url(url)
    most = _max_connections()
    engine = _engine_of(
        lambda: _connect_quietly(url),
        pool_size=min(KEPT_CONNECTIONS, most),
        max_overflow=max(0, most - KEPT_CONNECTIONS),
        pool_use_lifo=True,
        pool_timeout=FREE_CONNECTION_SECONDS,
    )
    event.listen(engine, "checkout", _refuse_closed)
    return engine


def _engine_of(creator: Callable[[], psycopg.Connection], **pool: Any) -> Engine:
    from sqlalchemy import create_engine, event

    # Python's own json, both ways: what exact_json admits comes back from jsonb the same, as a test shows.
    engine = create_engine("postgresql+psycopg://", creator=creator, hide_parameters=True, **pool)
    # Ends the transaction of SQLAlchemy's own questions to a new connection.
    event.listen(engine, "connect", lambda connection, _: connection.rollback())
    return engine


def _refuse_closed(connection: psycopg.Connection, *_: object) -> None:
    """
    Have the pool take another session if the server has closed this one, as far as this host knows.

    That takes no round trip, as a question to the server would. A session that was lost silently fails at its
    first statement, and the try that follows gets a new one.
    """
    try:
        with selectors.DefaultSelector() as arrived:
            arrived.register(connection.pgconn.socket, selectors.EVENT_READ)
            # What arrives may be a parameter that was changed, or why the session ends; the end itself is an error.
            while arrived.select(0):
                connection.pgconn.consume_input()
    except (psycopg.Error, OSError):
        import sqlalchemy.exc

        raise sqlalchemy.exc.DisconnectionError from None


@contextmanager
def checked_out(url: str) -> Iterator[Connection]:
    """
    A connection of this process's pool, for the block only. The block must not ask for a second one.

    Threads that each hold one connection and wait for a second could wait for one another for ever.

    :raises ConnectError: if none can be made, or none becomes free.
    """
    import sqlalchemy.exc

    try:
        connection = engine_for(url).connect()
    except sqlalchemy.exc.TimeoutError:
        raise ConnectError(
            "CONNECTIONS_IN_USE",
            f"All {_max_connections()} connections to Postgres that this process may have at a time are in use, and "
            f"none became free within {FREE_CONNECTION_SECONDS} s.",
            "Nothing was written.",
            f"Set the environment variable {MAX_CONNECTIONS} to the number of queries that write at the same time in "
            "this process, and make sure that max_connections of Postgres (or of the pooler) allows that; or run "
            "fewer queries in one driver.",
            may_pass=True,
        ) from None
    with connection:
        yield connection


@contextmanager
def lone(url: str, **overrides: Any) -> Iterator[Connection]:
    """
    A connection of no pool, for the block only: no session stays.

    :raises ConnectError: if none can be made.
    """
    from sqlalchemy import NullPool

    with _engine_of(lambda: _connect_quietly(url, **overrides), poolclass=NullPool).connect() as connection:
        yield connection


def _max_connections() -> int:
    given = os.environ.get(MAX_CONNECTIONS) or str(DEFAULT_MAX_CONNECTIONS)
    if given.isdecimal() and int(given) > 0:
        return int(given)
    raise ConfigurationError.usual(
        "BAD_OPTION",
        f"The environment variable {MAX_CONNECTIONS}={given!r} is not a number of connections.",
        "Give a whole number of at least 1, or unset the variable.",
    )


def driver_connection(connection: Connection) -> psycopg.Connection:
    """The psycopg connection under a SQLAlchemy one; only that can COPY."""
    raw = connection.connection.driver_connection
    assert isinstance(raw, psycopg.Connection)  # noqa: S101 (the engine is made for psycopg)
    return raw


def _connect_quietly(url: str, **overrides: Any) -> psycopg.Connection:
    connection = connect(url, **overrides)
    # SQLAlchemy asks a new connection for current_schema() and other things, by names without a schema.
    connection.execute(SET_OURS)
    return connection
