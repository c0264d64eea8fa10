"""
How is a connection made whose password is asked for at that moment?

Runs wherever a connection is made. Invariant: a source is asked once for each attempt to log in, for the very host that
is tried; a password that Postgres refuses is asked for once more, and one that it has taken is not.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import make_conninfo

from .ask_function import ask_function
from .login import Login
from .postgres_url import PostgresUrl

# libpq reads all that it was told, files and environment included, before it refuses this; it connects to nobody.
_STOP_BEFORE_CONNECTING = "pgonce only reads"
_DEFAULT_PORT = 5432
# Parameters of a connection that libpq does not know.
_OF_PSYCOPG = frozenset({"autocommit"})
# What is said after a password was sent, and not because of it. Sources: PQconnectPoll of libpq (the server is not of
# the wanted kind, or is gone), InitPostgres of Postgres (the login is done: now come role, database and settings), and
# PgBouncer's handling of logins.
_NOT_OF_THE_PASSWORD = re.compile(
    r"session is (not )?read-only|server is (not )?in hot standby mode|server closed the connection|"
    r'database ".*" does not exist|database ".*" is not currently accepting|connect to invalid database|'
    r"permission denied for database|is not permitted to log in|too many connections for|slots are reserved|"
    r'parameter "|the database system is|terminating connection|no such database|query_wait_timeout'
)


def connect_asking(url: PostgresUrl, parameters: Mapping[str, Any], *, was_let_in: bool) -> psycopg.Connection:
    """
    A new connection with these parameters of libpq, whose password comes from the source that ``url`` names.

    :param was_let_in: whether this process has connected with the same url before.
    :raises psycopg.Error: if no host lets us in.
    :raises PgonceError: as :func:`ask_function`.
    """
    refusals: list[psycopg.Error] = []
    for login, host in hosts_of(parameters):
        for attempt in (login, replace(login, refused=True)):
            given = {**parameters, **host, "password": _ask(url, attempt, was_let_in=was_let_in)}
            try:
                # Server-side prepared statements fail behind poolers that share sessions.
                return psycopg.connect(**given, prepare_threshold=None)
            except psycopg.Error as error:
                refusals.append(error.with_traceback(None))
            finally:
                del given
            if not is_password_refused(refusals[-1]):
                break
    raise _all_of(refusals)


def is_password_refused(error: psycopg.Error) -> bool:
    """
    Whether Postgres has asked for a password, and did not take the one that it got.

    For a connection that cannot be made, libpq gives no SQLSTATE (28P01 or 28000), only words. Those that are not
    known, as from a server in another language, count as a refusal: to renew a token that was good costs a question,
    and never to renew one that was too old costs the connection.
    """
    if error.pgconn is None or not error.pgconn.used_password:
        return False
    return not _NOT_OF_THE_PASSWORD.search(error.pgconn.error_message.decode(errors="replace"))


def _ask(url: PostgresUrl, login: Login, *, was_let_in: bool) -> str:
    return ask_function(url.password_from or "", login, was_let_in=was_let_in)


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


def _all_of(refusals: list[psycopg.Error]) -> psycopg.Error:
    if len(refusals) == 1:
        return refusals[0]
    last = refusals[-1]
    texts = dict.fromkeys(" ".join(str(error).split()) for error in refusals)
    return type(last)("; ".join(texts), pgconn=last.pgconn)
