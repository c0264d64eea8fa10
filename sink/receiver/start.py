"""
How does a batch that is planned get a receiver?

Runs in the planner's worker. Invariant: a receiver is a matter of speed: where none can be had, rows travel as they do
without one.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from uuid import uuid4

from pyspark.sql.types import StructType

from offsets_store.connect import connect
from offsets_store.errors import ConfigurationError, PgonceError
from sink.options import AUTOMATIC, SinkOptions
from sink.receiver.line import Receiver
from sink.settings import bad_option

_log = logging.getLogger("pgonce.receiver")

_SECRET_BYTES = 32
_RUN = "from sink.receiver.process import main; main()"


@dataclass(frozen=True)
class _Running:
    """A receiver that this worker has started."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    secret: bytes


# By the host at which they listen.
_running: dict[str, _Running] = {}


def receiver_for(options: SinkOptions, struct_type: StructType) -> Receiver | None:
    """
    A receiver that expects a batch with these columns; None where there is none, or is to be none.

    :raises ConfigurationError: where ``receiver`` names no address of this host.
    """
    from sink.receiver.process import Plan

    if options.receiver is None:
        return None
    name = uuid4().hex
    message = pickle.dumps(Plan(name, options, struct_type))
    try:
        host = _host_towards(options.commit.url) if options.receiver == AUTOMATIC else options.receiver
        running = _running.get(host)
        if running is None or not _told(running, message):
            running = _running[host] = _started(host)
            _told(running, message)
    except ConfigurationError:
        raise
    except (PgonceError, OSError) as error:
        _log.warning("there is no receiver for this batch: %s", error)
        return None
    return Receiver(running.host, running.port, running.secret, name)


@cache
def _host_towards(url: str) -> str:
    """The address of this host that faces Postgres: what is near to the server is near to its executors, too."""
    with connect(url) as connection, socket.socket(fileno=os.dup(connection.fileno())) as connected:
        if connected.family == socket.AF_UNIX:
            return "127.0.0.1"
        host: str = connected.getsockname()[0]
        return host


def _started(host: str) -> _Running:
    from sink.receiver.process import Start

    with _listening(host) as listening:
        process = subprocess.Popen(  # noqa: S603 (this very Python)
            [sys.executable, "-c", _RUN, str(listening.fileno())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            bufsize=0,
            pass_fds=[listening.fileno()],
            # As this worker finds its modules: Spark adds --py-files to the path, not to the environment.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        running = _Running(process, host, listening.getsockname()[1], secrets.token_bytes(_SECRET_BYTES))
    # Never waited for: a receiver that does not read is not worth a batch.
    os.set_blocking(process.stdin.fileno(), False)  # type: ignore[union-attr]
    _told(running, pickle.dumps(Start(running.secret, os.getppid())))
    return running


@contextmanager
def _listening(host: str) -> Iterator[socket.socket]:
    try:
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, 0), family=family, backlog=128)
    except OSError as error:
        raise bad_option(
            "NO_RECEIVER_HOST",
            f"receiver={host!r}: this driver cannot listen there: {error.strerror}.",
            "Name an address of the driver's host that executors reach, or use receiver=auto.",
        ) from None
    with listening:
        yield listening


def _told(running: _Running, message: bytes) -> bool:
    """Tell a receiver; False where it is gone, or does not listen."""
    if running.process.poll() is not None:
        return False
    try:
        is_told = running.process.stdin.write(message) == len(message)  # type: ignore[union-attr]
    except OSError:
        is_told = False
    if not is_told:
        running.process.kill()
        running.process.wait()
    return is_told
