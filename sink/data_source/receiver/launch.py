"""
Offer a receiver to a batch that was planned, and start it once a task calls.

Runs in the planner's worker. Invariant: a receiver only makes a batch faster; if there is none, rows travel as they do
with ``receiver=off``. A stream whose partitions all travel inline starts no process and listens at no network.
"""

from __future__ import annotations

import logging
import os
import pickle
import secrets
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from typing import IO, cast
from uuid import uuid4

from pyspark.sql.types import StructType

from pgonce.offsets_store.errors import ConfigurationError, PgonceError, bad_option

from ...options.definitions import AUTOMATIC
from ...options.sink_options import SinkOptions
from ...writing.rooms import Rooms
from ..workers import LOADED_VERSION
from . import folders
from .calls import Address, Doors
from .client import Receiver
from .folders import note_of
from .host_process import host_process
from .line import SECRET_BYTES, Identity, new_identity
from .messages import PlannedReception, Start

_log = logging.getLogger("pgonce.receiver")

# Ctrl-C in the user's terminal is for the driver, which may end its query in an orderly way.
_RUN = (
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from pgonce.sink.data_source.receiver.process import run_receiver; run_receiver()"
)
# Tasks that call at the same time wait here until the receiver has started.
_BACKLOG = 128


class _Offer:
    """
    A receiver of this worker: how it is called, and its process once a task has called.

    A thread waits for the first call, starts the process, which takes over the sockets, and writes to it what it is
    told. So neither the start nor a receiver that does not read keeps a batch waiting.

    :param listening: sockets; the callers wait in their backlogs until the process has started.
    :param identity: for callers from a network.
    :param driver: at which address or name of Spark's driver it was to listen for executors on other hosts.
    """

    def __init__(
        self, listening: Sequence[socket.socket], identity: Identity | None, driver: str | None = None
    ) -> None:
        self._listening, self.driver = listening, driver
        secret = secrets.token_bytes(SECRET_BYTES)
        self.doors = Doors(tuple(map(_address_of, listening)), identity.certificate if identity else None, secret)
        self.folder = folders.new_folder_name()
        self._start = Start(identity, secret, str(self.folder), host_process(os.getppid()), LOADED_VERSION)
        self._changed = threading.Condition()
        # By their writers. Of each, an earlier batch is over.
        self._plans: dict[tuple[str, str], PlannedReception] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False
        # A thread that waits for a call can be woken by this only.
        self._woken, self._wake = socket.socketpair()
        threading.Thread(target=self._serve, name="pgonce-receiver", daemon=True).start()

    def expects(self, plan: PlannedReception) -> bool:
        """Tell it of a batch; False if it is gone."""
        with self._changed:
            if self._is_over or (self._process and self._process.poll() is not None):
                return False
            self._plans[plan.writer] = plan
            self._changed.notify()
            return True

    def start(self) -> None:
        """Start it without a call, because one will come."""
        # It may have started already.
        with suppress(OSError):
            self._wake.send(b".")

    def retire(self) -> None:
        """Plan nothing more with it: it ends when it has nothing left to do."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self.start()

    def _serve(self) -> None:
        process = None
        try:
            called = select.poll()
            for one in (self._woken, *self._listening):
                called.register(one, select.POLLIN)
            called.poll()
            with self._changed:
                if not self._is_over:
                    self._process = process = self._popen()
        except OSError as error:
            _log.warning("there is no receiver for this batch: %s", error)
        finally:
            # They are the process's from now on. If there is none, callers must not wait.
            with self._changed:
                self._is_over = self._is_over or self._process is None
            for opened in (*self._listening, self._woken, self._wake):
                opened.close()
        if process is None:
            return
        pipe = cast("IO[bytes]", process.stdin)
        with suppress(OSError), pipe:
            order: Start | PlannedReception | None = self._start
            while order:
                pickle.dump(order, pipe)
                pipe.flush()
                with self._changed:
                    self._changed.wait_for(lambda: self._plans or self._is_over)
                    order = self._plans.pop(next(iter(self._plans))) if self._plans else None

    def _popen(self) -> subprocess.Popen[bytes]:
        folders.remove_leftovers()
        sockets = [one.fileno() for one in self._listening]
        return subprocess.Popen(  # noqa: S603 (the same Python)
            [sys.executable, "-c", _RUN, *map(str, sockets)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=sockets,
            # It must find modules as this worker does: Spark adds --py-files to the path, not to the environment.
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )


def _address_of(listening: socket.socket) -> Address:
    if listening.family == socket.AF_UNIX:
        return bytes(listening.getsockname()).decode()
    host, port, *_ = listening.getsockname()
    return str(host), int(port)


# By the option: "auto", or an address.
_offers: dict[str, _Offer] = {}


def receiver_for(options: SinkOptions, struct_type: StructType, rooms: Rooms) -> Receiver | None:
    """
    A receiver that expects a batch with these columns; None if there can be none, or if none is wanted.

    :raises ConfigurationError: if ``receiver`` does not name an address of this host, and never did.
    """
    if options.receiver is None or not _is_possible():
        return None
    plan = PlannedReception(uuid4(), options, struct_type, rooms)
    note = None
    with suppress(OSError):
        note = note_of(plan.writer)
    driver = note.read() if note else None
    try:
        offer = _offered(options.receiver, plan, driver)
        if driver:
            # The last large batch had to do without it, and the tasks of this one need not wait for its start.
            offer.start()
    except (PgonceError, OSError, ImportError) as error:
        if isinstance(error, ConfigurationError) and options.receiver not in _offers:
            raise
        _log.warning("there is no receiver for this batch: %s", error)
        return None
    return Receiver(offer.doors, plan.token, str(offer.folder), note)


def _is_possible() -> bool:
    if "SPARK_REUSE_WORKER" not in os.environ:
        _say_once("spark.python.worker.reuse is off, so every batch would start one of its own")
        return False
    # Windows has neither sockets that a process inherits, nor workers that are used again.
    return os.name == "posix"


@cache
def _say_once(why: str) -> None:
    _log.info("there is no receiver: %s", why)


def _offered(receiver: str, plan: PlannedReception, driver: str | None) -> _Offer:
    """An offer that has taken the plan; ``driver`` is where executors on other hosts must find it, if they must."""
    offer = _offers.get(receiver)
    if offer is not None and receiver == AUTOMATIC and driver not in (None, offer.driver):
        offer.retire()
        offer = None
    if offer is None or not offer.expects(plan):
        offer = _offers[receiver] = _new_offer(receiver, driver)
        offer.expects(plan)
    return offer


def _new_offer(receiver: str, driver: str | None) -> _Offer:
    if receiver != AUTOMATIC:
        return _Offer([_listening_at(receiver)], new_identity())
    listening = [_listening_on_this_host()] if sys.platform == "linux" else []
    identity = None
    if driver:
        # Where Spark itself listens, and nowhere else.
        try:
            identity = new_identity()
            listening.append(_listening(driver))
        except (OSError, UnicodeError, ImportError) as error:
            _say_once(f"executors on other hosts stage their rows, because it cannot listen at {driver}: {error}")
    return _Offer(listening, identity, driver)


def _listening_on_this_host() -> socket.socket:
    listening = socket.socket(socket.AF_UNIX)
    # A name without a file, which is gone with its processes. What tells users apart is asked on each line.
    listening.bind(f"\0pgonce-receiver-{secrets.token_hex(8)}")
    listening.listen(_BACKLOG)
    return listening


def _listening(host: str) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family, backlog=_BACKLOG)


def _listening_at(host: str) -> socket.socket:
    try:
        return _listening(host)
    except (OSError, UnicodeError) as error:
        raise bad_option(
            "NO_RECEIVER_HOST",
            f"receiver={host!r}: this driver cannot listen at this address: {error}.",
            "Name an address of the driver's host that executors reach, or use receiver=auto.",
        ) from None
