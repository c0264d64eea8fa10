"""
Bounds for a silent connection, and for how long a transaction of ours waits for a lock.

Runs where Postgres is spoken to. Invariant: every wait of ours has a bound, and both ends of a connection call it
dead after the same time: that of :data:`KEEPALIVES`, or what url sets.

Keepalives alone are not enough. While data that was sent is unacknowledged, TCP sends none of them and repeats the data
for a quarter of an hour (15.5 minutes were measured); and a server whose client is gone waits for two hours.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg.conninfo import conninfo_to_dict

from .passwords import of_service
from .search_path import SET_OURS

KEEPALIVES = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
"""Libpq's parameters for a connection on which nothing is under way: it is dead after 30 + 3 * 10 seconds."""

LINE_BOUNDS = (*KEEPALIVES, "tcp_user_timeout")
"""Libpq's parameters that say how long a connection may be silent."""

LOCK_SECONDS = 10.0
"""How long a transaction waits for a lock that only other transactions of ours take, and hold for a moment."""

# A COPY that waits for a lock does not read what is sent to it; its connection must not be called dead for that.
_BEYOND_A_LOCK_SECONDS = 30
_VERSION_17 = 170000


def with_line_bounds(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Libpq's parameters, with bounds for a silent connection if they have none."""
    bounded = {**{name: str(value) for name, value in KEEPALIVES.items()}, **parameters}
    bounded.setdefault("tcp_user_timeout", str(_milliseconds_of(bounded)))
    return bounded


def _milliseconds_of(parameters: Mapping[str, Any]) -> int:
    """How long data may be unacknowledged: as long as keepalives may, which this bound replaces once it is set."""
    idle, interval, count = (_number(parameters, name) or ours for name, ours in KEEPALIVES.items())
    return 1000 * (idle + interval * count)


def _number(parameters: Mapping[str, Any], name: str) -> int:
    """The number that libpq reads in a parameter; 0 is the system's own bound."""
    try:
        return max(0, int(parameters.get(name) or 0))
    except ValueError:
        return 0


# Libpq takes 0.4 ms to give them, which every commit would spend again.
_parameters: WeakKeyDictionary[psycopg.Connection, dict[str, str]] = WeakKeyDictionary()


def _parameters_of(connection: psycopg.Connection) -> dict[str, str]:
    found = _parameters.get(connection)
    if found is None:
        found = _parameters[connection] = connection.info.get_parameters()
    return found


def server_settings(connection: psycopg.Connection) -> dict[str, str]:
    """
    Settings that let the server notice that a client is gone as soon as the client would notice the same of the server.

    Over a Unix socket Postgres ignores them. They are for one transaction only, because a pooler gives the session to
    another client afterwards.
    """
    parameters = _parameters_of(connection)
    names = {"tcp_user_timeout": "tcp_user_timeout", **{f"tcp_{name}": name for name in KEEPALIVES}}
    return {setting: str(_number(parameters, name)) for setting, name in names.items()}


def enter_in_tx(
    connection: psycopg.Connection, lock_seconds: float = LOCK_SECONDS, statement_seconds: float = 0
) -> int:
    """
    Begin a transaction of ours: set our search_path, a bound for each lock, and the server's bounds for the connection.

    :param statement_seconds: how long a statement may take; 0 for as long as it takes, whatever the role's limits are.
    :return: the pid of the server's process. The pid that the client library knows may be made up by a pooler.
    """
    settings = dict.fromkeys(time_limits(connection), "0") | server_settings(connection)
    # Where Postgres has LLVM, it may take seconds to compile a statement that takes milliseconds.
    settings["jit"] = "off"
    for name, seconds in (("statement_timeout", statement_seconds), ("lock_timeout", lock_seconds)):
        settings[name] = f"{int(seconds * 1000)}"
    to_set = [f"SET LOCAL {name} = {value}" for name, value in settings.items()]
    cursor = connection.execute("; ".join([SET_OURS, *to_set, "SELECT pg_catalog.pg_backend_pid()"]))
    while cursor.nextset():
        pass
    ((pid,),) = cursor
    return int(pid)


def time_limits(connection: psycopg.Connection) -> tuple[str, ...]:
    """The settings by which a role, or a database, ends what takes long."""
    limits = ("statement_timeout", "idle_in_transaction_session_timeout")
    return (*limits, "transaction_timeout") if connection.info.server_version >= _VERSION_17 else limits


def outlast_locks(connection: psycopg.Connection, url: str, lock_seconds: float) -> None:
    """Let the connection be silent for longer than a COPY may wait for a lock, unless ``url`` says how long."""
    if _sets_its_own(url) or not hasattr(socket, "TCP_USER_TIMEOUT"):
        return
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        if line.family != socket.AF_UNIX:
            wanted = max(
                _milliseconds_of(_parameters_of(connection)), 1000 * (int(lock_seconds) + _BEYOND_A_LOCK_SECONDS)
            )
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, wanted)


@lru_cache(maxsize=32)
def _sets_its_own(url: str) -> bool:
    parameters = conninfo_to_dict(url)
    return "tcp_user_timeout" in {**parameters, **of_service(parameters, LINE_BOUNDS)}
