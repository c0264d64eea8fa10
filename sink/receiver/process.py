"""
The receiver: takes the rows of batches that its planner's worker has planned, and commits them.

A process of its own, on the driver, started by the planner's worker (Spark ends idle workers after a minute, and a
batch may last longer). Invariant: it outlives neither Spark's daemon nor, where nothing is left to do, its planner.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from pyspark.sql.types import StructType

from offsets_store.errors import PgonceError
from offsets_store.verdict import Verdict
from sink.options import SinkOptions
from sink.parcel import OffsetLogEntry, Origin
from sink.receiver.errors import as_message, without_rows
from sink.receiver.line import BROKEN, Line
from sink.receiver.promise import Promise
from sink.receiver.reception import Reception

_log = logging.getLogger("pgonce.receiver")

IDLE_SECONDS = 60.0
# A task may ring before the plan has been read, for both are sent at once.
_PLAN_SECONDS = 10.0
_LOOK_SECONDS = 0.5
_SAY_ALIVE_SECONDS = 1.0


@dataclass(frozen=True)
class Start:
    """What a receiver is told first, on its standard input."""

    secret: bytes
    daemon_pid: int


@dataclass(frozen=True)
class Plan:
    """What it is told of each batch that is planned."""

    name: str
    options: SinkOptions
    struct_type: StructType


class Receptions:
    """The batches that may still be committed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._planned: dict[str, Reception] = {}
        self._used_at = time.monotonic()

    def plan(self, plan: Plan) -> None:
        """A batch was planned; an earlier one of the same writer is over."""
        reception = Reception(UUID(plan.name), plan.options, plan.struct_type)
        with self._changed:
            over = [name for name, other in self._planned.items() if other.writer == reception.writer]
            for name in over:
                self._planned.pop(name).give_up()
            self._planned[plan.name] = reception
            self._used_at = time.monotonic()
            self._changed.notify_all()

    def of(self, name: str) -> Reception | None:
        """The reception of a planned batch, None where it is over."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._planned, timeout=_PLAN_SECONDS)
            return self._planned.get(name)

    def end(self, name: str) -> None:
        """The batch is committed, or has failed."""
        with self._changed:
            reception = self._planned.pop(name, None)
            self._used_at = time.monotonic()
        if reception is not None:
            reception.give_up()

    def look_at_clock(self) -> bool:
        """Wake what waits; whether there is anything left to do."""
        with self._changed:
            receptions = list(self._planned.values())
            is_idle = time.monotonic() - self._used_at > IDLE_SECONDS
        for reception in receptions:
            reception.look_at_clock()
        return not is_idle or any(reception.has_rows for reception in receptions)


def main() -> None:
    """Run until there is nothing left to do; the one argument is the descriptor of the socket to listen at."""
    # Ctrl-C in the user's terminal is for the driver, which may end its query in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    listening = socket.socket(fileno=int(sys.argv[1]))
    start: Start = pickle.load(sys.stdin.buffer)  # noqa: S301 (from the process that started this one)
    receptions = Receptions()
    _beside(_take_plans, receptions)
    _beside(_answer, listening, start.secret, receptions)
    while receptions.look_at_clock() and _lives(start.daemon_pid):
        time.sleep(_LOOK_SECONDS)
    # Not by returning, for threads may be waiting: Postgres aborts what is open.
    os._exit(0)


def _beside(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _take_plans(receptions: Receptions) -> None:
    with suppress(EOFError):
        while True:
            receptions.plan(pickle.load(sys.stdin.buffer))  # noqa: S301 (as above)


def _answer(listening: socket.socket, secret: bytes, receptions: Receptions) -> None:
    while True:
        connected, _ = listening.accept()
        _beside(_converse, connected, secret, receptions)


def _converse(connected: socket.socket, secret: bytes, receptions: Receptions) -> None:
    line = Line(connected)
    try:
        line.identify(secret, dialled=False)
        message = line.hear()
        if message["say"] == "rows":
            _take_rows(line, message, receptions)
        elif message["say"] == "finish":
            _finish(line, message, receptions)
        else:
            receptions.end(message["plan"])
    except BROKEN as error:
        _log.info("a line broke: %s", error)
    finally:
        line.close()


def _take_rows(line: Line, message: dict[str, Any], receptions: Receptions) -> None:
    reception = receptions.of(message["plan"])
    origin = message["origin"]
    if origin["planned"] is not None:
        origin["planned"] = OffsetLogEntry(**origin["planned"])
    sending = reception.open(Origin(**origin), message["partition_id"], message["attempt_id"]) if reception else None
    line.say(taken=sending is not None)
    if reception is None or sending is None:
        return
    try:
        while body := line.next_body():
            reception.take(sending, body)
        reception.end(sending, line.hear()["rows"])
        line.say(kept=True)
    finally:
        reception.close(sending)


def _finish(line: Line, message: dict[str, Any], receptions: Receptions) -> None:
    bodies = tuple(line.next_body() for _ in range(message["bodies"]))
    answers: list[dict[str, Any]] = []

    def commit() -> None:
        try:
            answers.append({"verdict": _committed(message["plan"], message["promise"], bodies, receptions).name})
        except Exception as error:  # noqa: BLE001 (the commit worker raises it)
            if not isinstance(error, PgonceError):
                _log.exception("a batch failed")
            answers.append({"error": as_message(error)})

    committing = threading.Thread(target=commit, daemon=True)
    committing.start()
    while committing.is_alive():
        committing.join(_SAY_ALIVE_SECONDS)
        if committing.is_alive():
            line.say(alive=True)
    receptions.end(message["plan"])
    line.say(**answers[0])


def _committed(name: str, promise: dict[str, Any], inline: tuple[bytes, ...], receptions: Receptions) -> Verdict:
    reception = receptions.of(name)
    if reception is None:
        raise without_rows("The receiver knows nothing of this batch: it was told that it has failed.")
    return reception.finish(Promise.from_message(promise, inline))
