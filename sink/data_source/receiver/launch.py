"""
Start a receiver, or tell one that runs, for a batch that was planned.

Runs in the planner's worker. Invariant: a receiver only makes a batch faster; if there is none, rows travel as they do
without the option.
"""

from __future__ import annotations

import logging
import os
import pickle
import queue
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from ipaddress import ip_address
from pathlib import Path
from typing import IO, cast
from uuid import uuid4

from pyspark.sql.types import StructType

from pgonce.offsets_store.errors import ConfigurationError, NotInstalledError, PgonceError, bad_option
from pgonce.offsets_store.postgres.connect import connect

from ...options.definitions import AUTOMATIC
from ...options.sink_options import SinkOptions
from ..workers import LOADED_VERSION
from . import folders
from .client import Receiver
from .host_process import HostProcess, host_process, parent_of
from .line import SECRET_BYTES, new_identity
from .messages import PlannedReception, Start

_log = logging.getLogger("pgonce.receiver")

# Ctrl-C in the user's terminal is for the driver, which may end its query in an orderly way.
_RUN = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from pgonce.sink.data_source.receiver.process import run_receiver; run_receiver()"
)
# A receiver reads at once, except during the second in which it starts.
_UNREAD_ORDERS = 64


class _Running:
    """
    A receiver that this worker has started.

    A thread writes what it is told, so that a batch does not wait for a receiver that does not read.
    """

    def __init__(self, host: str) -> None:
        identity = new_identity()
        daemon = host_process(os.getppid())
        driver = host_process(parent_of(daemon.pid))
        with _listening(host) as listening, _folder_of(driver, daemon) as self.folder:
            self._process = subprocess.Popen(  # noqa: S603 (the same Python)
                [sys.executable, "-c", _RUN, str(listening.fileno())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                # It must find modules as this worker does: Spark adds --py-files to the path, not to the environment.
                env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            )
            self.host, self.port = host, int(listening.getsockname()[1])
        self.process = host_process(self._process.pid)
        self.certificate, self.secret = identity.certificate, secrets.token_bytes(SECRET_BYTES)
        self._orders: queue.Queue[Start | PlannedReception | None] = queue.Queue(_UNREAD_ORDERS)
        self._orders.put(Start(identity, self.secret, str(self.folder), driver, daemon, LOADED_VERSION))
        self._writing = threading.Thread(target=self._write_orders, name="pgonce-receiver-orders", daemon=True)
        self._writing.start()

    def expects(self, plan: PlannedReception) -> bool:
        """Tell it of a batch; False if it is gone, or has stopped reading."""
        with suppress(queue.Full):
            if self._process.poll() is None and self._writing.is_alive():
                self._orders.put_nowait(plan)
                return True
            self._orders.put_nowait(None)
        # A receiver that does not read is frozen. It may hold a transaction of another query, which would block its
        # successor.
        self._process.kill()
        self._process.wait()
        return False

    def _write_orders(self) -> None:
        pipe = cast("IO[bytes]", self._process.stdin)
        with suppress(OSError), pipe:
            while (order := self._orders.get()) is not None:
                pickle.dump(order, pipe)
                pipe.flush()


# By the host at which they listen.
_running: dict[str, _Running] = {}


def receiver_for(options: SinkOptions, struct_type: StructType) -> Receiver | None:
    """
    A receiver that expects a batch with these columns; None if there can be none, or if none is wanted.

    :raises ConfigurationError: if ``receiver`` does not name an address of this host, and never did; or if no
        certificate can be made.
    """
    if options.receiver is None:
        return None
    if "SPARK_REUSE_WORKER" not in os.environ:
        _log.warning(
            "there is no receiver: spark.python.worker.reuse is off, so every batch would start one of its own"
        )
        return None
    plan = PlannedReception(uuid4(), options, struct_type)
    try:
        host = _host_towards(options.commit.url) if options.receiver == AUTOMATIC else options.receiver
        running = _running.get(host)
        if running is None or not running.expects(plan):
            running = _running[host] = _Running(host)
            running.expects(plan)
    except (PgonceError, OSError) as error:
        _host_towards.cache_clear()
        if isinstance(error, ConfigurationError) and _is_for_good(error, options):
            raise
        _log.warning("there is no receiver for this batch: %s", error)
        return None
    return Receiver(
        running.host,
        running.port,
        running.certificate,
        running.secret,
        plan.token,
        running.process,
        str(running.folder),
    )


def _is_for_good(error: ConfigurationError, options: SinkOptions) -> bool:
    return isinstance(error, NotInstalledError) or options.receiver not in (AUTOMATIC, *_running)


@cache
def _host_towards(url: str) -> str:
    """The address at which this host talks to Postgres: executors most likely reach it there."""
    with connect(url) as connection, socket.socket(fileno=os.dup(connection.fileno())) as connected:
        if connected.family == socket.AF_UNIX:
            return "127.0.0.1"
        host: str = connected.getsockname()[0]
        return host


@contextmanager
def _listening(host: str) -> Iterator[socket.socket]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        listening = socket.create_server((host, 0), family=family, backlog=128)
    except (OSError, UnicodeError) as error:
        raise _no_host(host, f"this driver cannot listen at this address: {error}") from None
    if ip_address(address[0]).is_unspecified:
        listening.close()
        raise _no_host(host, "this stands for all addresses of the host, and tasks need one to which they can connect")
    with listening:
        yield listening


@contextmanager
def _folder_of(driver: HostProcess, daemon: HostProcess) -> Iterator[Path]:
    """A folder for a receiver that is started in the block."""
    folders.remove_leftovers()
    folder = folders.new_folder(driver, daemon)
    try:
        yield folder
    except BaseException:
        folders.remove(folder)
        raise


def _no_host(host: str, why: str) -> ConfigurationError:
    remedy = "Name an address of the driver's host that executors reach, or use receiver=auto."
    return bad_option("NO_RECEIVER_HOST", f"receiver={host!r}: {why}.", remedy)
