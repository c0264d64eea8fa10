"""
Make a connection whose password comes from the function that ``passwordFrom`` names.

Runs where a connection is made, executors and the command line included. Invariants: the function is called once for
each attempt to log in, for the host that is tried; after Postgres has refused a password it is called once more, and
never after Postgres has accepted one. What it returns is kept nowhere. Of an error of it only the type is told, and
nothing is logged at DEBUG meanwhile.
"""

from __future__ import annotations

import logging
import os
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from threading import Lock
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from ..errors import ConfigurationError, ConnectError
from .postgres_url import Login

# libpq reads all its settings, files and environment included, before it refuses this; it connects to no server.
_STOP_BEFORE_CONNECTING = "pgonce only reads"
_DEFAULT_PORT = 5432
# Parameters of a connection that libpq does not know.
_OF_PSYCOPG = frozenset({"autocommit"})
# Errors that come after a password was sent, and not because of it. Sources: PQconnectPoll of libpq (the server is not
# of the wanted kind, or is gone), InitPostgres of Postgres (the login is done: now come role, database and settings),
# and PgBouncer's handling of logins.
_NOT_OF_THE_PASSWORD = re.compile(
    r"session is (not )?read-only|server is (not )?in hot standby mode|server closed the connection|"
    r'database ".*" does not exist|database ".*" is not currently accepting|connect to invalid database|'
    r"permission denied for database|is not permitted to log in|too many connections for|slots are reserved|"
    r'parameter "|the database system is|terminating connection|no such database|query_wait_timeout'
)


def connect_asking(source: str, parameters: Mapping[str, Any], *, was_let_in: bool) -> psycopg.Connection:
    """
    A new connection with these parameters of libpq, whose password comes from the function called ``source``.

    :param was_let_in: whether this process has connected with the same url before.
    :raises psycopg.Error: if no host lets us in.
    :raises PgonceError: as :func:`ask_function`.
    """
    refusals: list[psycopg.Error] = []
    for login, host in hosts_of(parameters):
        for attempt in (login, replace(login, refused=True)):
            password = ask_function(source, attempt, was_let_in=was_let_in)
            given = {**parameters, **host, "password": password}
            try:
                # Server-side prepared statements fail behind poolers that share sessions.
                return psycopg.connect(**given, prepare_threshold=None)
            except psycopg.Error as error:
                refusals.append(error.with_traceback(None))
            finally:
                del given, password
            if not is_password_refused(refusals[-1]):
                break
    raise _all_of(refusals)


def is_password_refused(error: psycopg.Error) -> bool:
    """
    Whether Postgres has asked for a password, and did not take the one that it got.

    For a connection that cannot be made, libpq gives no SQLSTATE (28P01 or 28000), only a text. An unknown text, such
    as one in another language, counts as a refusal: to renew a good token costs one call, and to keep one that has
    expired costs the connection.
    """
    if error.pgconn is None or not error.pgconn.used_password:
        return False
    return not _NOT_OF_THE_PASSWORD.search(error.pgconn.error_message.decode(errors="replace"))


def hosts_of(parameters: Mapping[str, Any]) -> Iterator[tuple[Login, dict[str, Any]]]:
    """
    Each host that libpq would try, in its order: who logs in there, and the parameters that name this host alone.

    A token may be for one host only, so each is tried by itself. What libpq would do with the list is done here.
    """
    read = resolved(parameters)
    names, addresses, ports = (read.get(name, "").split(",") for name in ("host", "hostaddr", "port"))
    count = max(len(names), len(addresses))
    hosts: list[tuple[Login, dict[str, Any]]] = []
    for number in range(count):
        name, address, port = (
            part[number] if len(part) == count else part[0] if part is ports else ""
            for part in (names, addresses, ports)
        )
        login = Login(name or address, _port(port), read.get("user", ""), read.get("dbname", ""))
        hosts.append((login, {"host": name or None, "hostaddr": address or None, "port": port or None}))
    if read.get("load_balance_hosts") == "random":
        random.shuffle(hosts)
    if read.get("target_session_attrs") == "prefer-standby":
        standby = [(login, {**host, "target_session_attrs": "standby"}) for login, host in hosts]
        hosts = [*standby, *((login, {**host, "target_session_attrs": "any"}) for login, host in hosts)]
    yield from hosts


def _port(text: str) -> int:
    if not text:
        return _DEFAULT_PORT
    if not text.strip().isdecimal():
        raise psycopg.OperationalError(f"invalid port number: {text!r}")
    return int(text)


def resolved(parameters: Mapping[str, Any]) -> dict[str, str]:
    """What libpq makes of these parameters, its environment, the service file and its defaults; without passwords."""
    of_libpq = {name: value for name, value in parameters.items() if name not in _OF_PSYCOPG}
    told = make_conninfo("", **{**of_libpq, "sslmode": _STOP_BEFORE_CONNECTING})
    reader = pq.PGconn.connect_start(told.encode())
    try:
        read = {option.keyword.decode(): (option.val or b"").decode(errors="replace") for option in reader.info}
        objection = reader.error_message.decode(errors="replace").strip()
    finally:
        reader.finish()
    if "sslmode" not in objection:
        # There is something else that libpq cannot read: no such service, or more ports than hosts.
        raise psycopg.OperationalError(objection)
    return {name: value for name, value in read.items() if "password" not in name}


def of_service(parameters: Mapping[str, Any], names: Iterable[str]) -> dict[str, str]:
    """What the service file sets of ``names``, which have no default in libpq; empty if no service is named."""
    if "service" not in parameters and "PGSERVICE" not in os.environ:
        return {}
    try:
        found = resolved(parameters)
    except psycopg.OperationalError:
        # The attempt to connect says what is wrong with it.
        return {}
    return {name: found[name] for name in names if found.get(name)}


def _all_of(refusals: list[psycopg.Error]) -> psycopg.Error:
    if len(refusals) == 1:
        return refusals[0]
    last = refusals[-1]
    texts = dict.fromkeys(" ".join(str(error).split()) for error in refusals)
    return type(last)("; ".join(texts), pgconn=last.pgconn)


def ask_function(name: str, login: Login, *, was_let_in: bool) -> str:
    """
    The password that the function called ``name`` (``module:function``) gives.

    :param was_let_in: whether this process has connected to the same url before: then a failure may pass.
    :raises ConfigurationError: PASSWORD_SOURCE_MISSING.
    :raises ConnectError: PASSWORD_SOURCE_FAILED.
    """
    given: Any = None
    failure = ""
    with _QUIET:
        function = _found(name)
        try:
            given = function(login)
        except (Exception, SystemExit) as error:  # noqa: BLE001 (code of the user's)
            # Its words may hold the password itself, and nothing marks it as one.
            failure = f"raised {type(error).__name__}"
    if not failure:
        failure = _no_password(given)
    if failure:
        # Raised here, where no exception of the function is being handled: its frames may hold secrets.
        raise ConnectError(
            "PASSWORD_SOURCE_FAILED",
            f"The function {name} of passwordFrom {failure}, so there is no password for role {login.user!r}.",
            "Nothing was written.",
            "Call the function by itself in this process; its full error is not repeated here, because it may hold "
            "secrets. It takes one argument (pgonce.Login) and returns the password as a str.",
            may_pass=was_let_in,
        )
    # Not str(): a type of other code may do anything there.
    return str.__str__(given)


def _found(name: str) -> Callable[[Login], Any]:
    module_name, _, function_name = name.partition(":")
    missing = ""
    found: Any = None
    try:
        found = getattr(import_module(module_name), function_name, None)
    except ModuleNotFoundError as error:
        is_itself = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
        missing = f"there is no module {error.name}" if is_itself else f"module {module_name} needs {error.name}"
    except (Exception, SystemExit) as error:  # noqa: BLE001 (code of the user's)
        missing = f"module {module_name} cannot be imported: it raised {type(error).__name__}"
    if not missing and not callable(found):
        missing = f"module {module_name} has no function {function_name}"
    if missing:
        raise ConfigurationError.usual(
            "PASSWORD_SOURCE_MISSING",
            f"passwordFrom={name} cannot be used in this process: {missing}.",
            "The module must be importable in every process that connects: on the driver, on executors that stage "
            "rows (install it there, or send it with --py-files), and where the command line runs (PYTHONPATH).",
        )
    function: Callable[[Login], Any] = found
    return function


def _no_password(given: object) -> str:
    """The text that says why this cannot be a password; empty if it can."""
    if given is None:
        return "returned nothing (None)"
    if not isinstance(given, str):
        return f"returned a {type(given).__name__}, not a str"
    if not given.strip():
        return "returned an empty string"
    if "\0" in given:
        return "returned a string with a NUL, which no password can have"
    # psycopg would raise a UnicodeEncodeError, which holds the whole connection string, and shows it in its repr().
    if any("\ud800" <= character <= "\udfff" for character in given):
        return (
            "returned a string that is not valid Unicode (it has surrogates, which come from bytes that were not UTF-8)"
        )
    return ""


class _Quiet:
    """
    Lets no logger of this process write at DEBUG while at least one thread is in its block.

    There the libraries of clouds log tokens, and what is sent for them; some by threads and loggers that they make only
    when they are first used.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._threads = 0
        self._before = logging.NOTSET

    def __enter__(self) -> None:
        with self._lock:
            if not self._threads:
                self._before = logging.root.manager.disable
                logging.disable(max(self._before, logging.DEBUG))
            self._threads += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._threads -= 1
            if not self._threads:
                logging.disable(self._before)


_QUIET = _Quiet()
