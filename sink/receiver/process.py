"""
The receiver: takes the rows of batches that its planner's worker has planned, and commits them.

A process of its own, on the driver, started by the planner's worker (Spark ends idle workers after a minute, and a
batch may last longer). Invariant: it outlives neither Spark's daemon nor, where nothing is left to do, its planner.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from uuid import UUID

from offsets_store.errors import PgonceError
from offsets_store.verdict import Verdict
from sink.parcel import OffsetLogEntry, Origin
from sink.receiver.errors import as_message, without_rows
from sink.receiver.line import BROKEN, Line
from sink.receiver.orders import Plan, Start
from sink.receiver.promise import Promise
from sink.receiver.reception import Reception

_log = logging.getLogger("pgonce.receiver")

# The first large task of a batch may be a slow one.
IDLE_SECONDS = 600.0
# Where the planner's worker is gone, no other batch is planned here.
LEFT_ALONE_SECONDS = 60.0
# A task may ring before the plan has been read, for both are sent at once.
_PLAN_SECONDS = 10.0
# Of so many batches that are over it is known that no plan will come.
_REMEMBERED = 100
_LOOK_SECONDS = 0.5
_SAY_ALIVE_SECONDS = 1.0
# A stranger may ring and say nothing, or keep more lines open than this process may have.
_IDENTIFY_SECONDS = 10
_DEAF_SECONDS = 0.1


class Receptions:
    """The batches that may still be committed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._planned: dict[str, Reception] = {}
        self._over: deque[str] = deque(maxlen=_REMEMBERED)
        self._used_at = time.monotonic()
        self.is_alone = False

    def plan(self, plan: Plan) -> None:
        """A batch was planned; an earlier one of the same writer is over."""
        reception = Reception(UUID(plan.name), plan.options, plan.struct_type)
        with self._changed:
            over = [name for name, other in self._planned.items() if other.writer == reception.writer]
            for name in over:
                self._over.append(name)
                self._planned.pop(name).give_up()
            self._planned[plan.name] = reception
            self._used_at = time.monotonic()
            self._changed.notify_all()

    def of(self, name: str) -> Reception | None:
        """The reception of a planned batch, None where it is over."""
        with self._changed:
            self._changed.wait_for(lambda: name in self._planned or name in self._over, timeout=_PLAN_SECONDS)
            return self._planned.get(name)

    def end(self, name: str) -> None:
        """The batch is committed, or has failed."""
        with self._changed:
            reception = self._planned.pop(name, None)
            self._over.append(name)
            self._used_at = time.monotonic()
        if reception is not None:
            reception.give_up()

    def look_at_clock(self) -> bool:
        """Wake what waits; whether there is anything left to do."""
        with self._changed:
            receptions = list(self._planned.values())
            idle_seconds = time.monotonic() - self._used_at
        for reception in receptions:
            reception.look_at_clock()
        is_idle = idle_seconds > (LEFT_ALONE_SECONDS if self.is_alone else IDLE_SECONDS)
        return not is_idle or any(reception.may_be_finished() for reception in receptions)


def main() -> None:
    """Run until there is nothing left to do; the one argument is the descriptor of the socket to listen at."""
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
    try:
        while True:
            receptions.plan(pickle.load(sys.stdin.buffer))  # noqa: S301 (as above)
    except EOFError:
        pass
    except Exception:  # noqa: BLE001 (a thread that died would leave every task waiting)
        _log.exception("the planner's worker is not understood")
    receptions.is_alone = True


def _answer(listening: socket.socket, secret: bytes, receptions: Receptions) -> None:
    while True:
        try:
            connected, _ = listening.accept()
            _beside(_converse, connected, secret, receptions)
        except (OSError, RuntimeError) as error:
            _log.warning("a line was not taken: %s", error)
            time.sleep(_DEAF_SECONDS)


def _converse(connected: socket.socket, secret: bytes, receptions: Receptions) -> None:
    line = Line(connected, _IDENTIFY_SECONDS)
    try:
        line.identify(secret, dialled=False)
        line.be_patient(0)
        message = line.hear()
        if message["say"] == "rows":
            _take_rows(line, message, receptions)
        elif message["say"] == "finish":
            _finish(line, message, receptions)
        else:
            receptions.end(message["plan"])
    except BROKEN as error:
        _log.info("a line broke: %s", error)
    except Exception:  # noqa: BLE001 (whoever rang is told by the line's end)
        _log.exception("a line was not understood")
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
    answers: list[dict[str, Any]] = []

    def commit() -> None:
        try:
            answers.append({"verdict": _committed(message["plan"], message["promise"], bodies, receptions).name})
        except Exception as error:  # noqa: BLE001 (the commit worker raises it)
            if not isinstance(error, PgonceError):
                _log.exception("a batch failed")
            answers.append({"error": as_message(error)})

    try:
        bodies = tuple(line.next_body() for _ in range(message["bodies"]))
        committing = threading.Thread(target=commit, daemon=True)
        committing.start()
        while committing.is_alive():
            committing.join(_SAY_ALIVE_SECONDS)
            if committing.is_alive():
                line.say(alive=True)
    finally:
        # Also where the commit worker has hung up: it tells Spark that the batch has failed.
        receptions.end(message["plan"])
    line.say(**answers[0])


def _committed(name: str, promise: dict[str, Any], inline: tuple[bytes, ...], receptions: Receptions) -> Verdict:
    reception = receptions.of(name)
    if reception is None:
        raise without_rows("The receiver knows nothing of this batch: it was told that it has failed.")
    return reception.finish(Promise.from_message(promise, inline))
