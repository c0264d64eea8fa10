"""
The receiver: takes the rows of batches that its planner's worker has planned, and commits them.

A process of its own, on the driver, started by the planner's worker (Spark ends idle workers after a minute, and a
batch may last longer). Invariant: it ends with Spark's daemon, and soon after its planner if nothing is left to do. Of
each writer, one batch is expected at a time.
"""

from __future__ import annotations

import logging
import os
import pickle
import socket
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from typing import Any
from uuid import UUID

from pgonce.offsets_store.verdict.decide import Verdict

from ...identity.from_checkpoint import Origin
from ..workers import LOADED_VERSION
from .line import BROKEN, Line, context_of
from .messages import (
    PlannedReception,
    Promise,
    Start,
    error_as_message,
    in_words,
    origin_from_message,
    promise_from_message,
    without_rows,
)
from .reception import Reception

_log = logging.getLogger("pgonce.receiver")

_LOOK_SECONDS = 0.5
_SAY_ALIVE_SECONDS = 1.0
# A stranger may connect and send nothing, or keep more lines open than this process may have.
_IDENTIFY_SECONDS = 10
_DEAF_SECONDS = 0.1
# The first large task of a batch may be a slow one.
IDLE_SECONDS = 600.0
# Once the planner's worker is gone, no more batches come.
LEFT_ALONE_SECONDS = 60.0
# A task may call before the plan has been read, because both are sent at the same time.
_PLAN_SECONDS = 10.0
# How many batches that are over are remembered: a call for one of them need not wait for its plan.
_REMEMBERED = 100


def run_receiver() -> None:
    """Run until there is nothing left to do; the one argument is the descriptor of the socket to listen at."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    start: Start = pickle.load(sys.stdin.buffer)  # noqa: S301 (from the process that started this one)
    if start.version != LOADED_VERSION:
        # Installed since the planner's worker began. Without a receiver, tasks stage their rows.
        _log.error("the planner has pgonce %s, and its receiver has %s", start.version, LOADED_VERSION)
        return
    receptions = Receptions()
    _beside(_take_plans, receptions)
    _beside(_answer, listening, context_of(start.identity), start.secret, receptions)
    while receptions.has_work() and _lives(start.daemon_pid):
        receptions.wake()
        time.sleep(_LOOK_SECONDS)
    # Not by returning, because threads may be waiting. Postgres rolls back what is open.
    os._exit(0)


def _beside(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _take_plans(receptions: Receptions) -> None:
    try:
        while True:
            receptions.plan(pickle.load(sys.stdin.buffer))  # noqa: S301 (as above)
    except EOFError:
        receptions.is_alone = True
    except Exception:  # noqa: BLE001 (without plans every task would wait in vain)
        _log.exception("the message of the planner's worker cannot be read")
        os._exit(1)


def _answer(listening: socket.socket, context: ssl.SSLContext, secret: bytes, receptions: Receptions) -> None:
    while True:
        try:
            connected, _ = listening.accept()
            _beside(_converse, connected, context, secret, receptions)
        except (OSError, RuntimeError) as error:
            _log.warning("a connection could not be accepted: %s", error)
            time.sleep(_DEAF_SECONDS)


def _converse(connected: socket.socket, context: ssl.SSLContext, secret: bytes, receptions: Receptions) -> None:
    try:
        with closing(Line(connected, context, _IDENTIFY_SECONDS, dialled=False)) as line:
            line.refuse_stranger(secret)
            line.be_patient(0)
            message = line.hear()
            token = UUID(message["token"])
            match message["say"]:
                case "rows":
                    _take_rows(line, message, receptions.of(token))
                case "finish":
                    _finish(line, message, receptions, token)
                case "give up":
                    receptions.end(token)
                    line.say(over=True)
    except BROKEN as error:
        _log.info("a connection was lost: %s", error)
    except Exception as error:  # noqa: BLE001 (the caller notices that the line ends)
        _log.error("the message of a caller cannot be read: %s", in_words(error))


def _take_rows(line: Line, message: dict[str, Any], reception: Reception | None) -> None:
    who = origin_from_message(message["origin"]), message["partition_id"], message["attempt_id"]
    sending = reception.open(*who) if reception else None
    line.say(taken=sending is not None)
    if reception is None or sending is None:
        return
    try:
        while body := line.next_body():
            if not reception.take(sending, body):
                return
        reception.end(sending, line.hear()["rows"])
        line.say(kept=True)
    finally:
        reception.close(sending)


def _finish(line: Line, message: dict[str, Any], receptions: Receptions, token: UUID) -> None:
    answers: list[dict[str, Any]] = []

    def commit() -> None:
        try:
            promise = promise_from_message(message["promise"], bodies)
            verdict = _committed(receptions.of(token), origin_from_message(message["origin"]), promise)
            answers.append({"verdict": verdict.name})
        except Exception as error:  # noqa: BLE001 (the commit worker raises it)
            answers.append({"error": error_as_message(error)})

    try:
        bodies = tuple(line.next_body() for _ in range(message["bodies"]))
        committing = threading.Thread(target=commit, daemon=True)
        committing.start()
        while committing.is_alive():
            committing.join(_SAY_ALIVE_SECONDS)
            if committing.is_alive():
                line.say(alive=True)
    finally:
        # Even if the commit worker has hung up, because it then tells Spark that the batch has failed.
        receptions.end(token)
    line.say(**answers[0])


def _committed(reception: Reception | None, origin: Origin, promise: Promise) -> Verdict:
    if reception is None:
        raise without_rows(
            "The receiver has no rows of this batch: it drops them when it is told that a batch has failed."
        )
    return reception.finish(origin, promise)


class Receptions:
    """The batches that may still be committed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._planned: dict[UUID, Reception] = {}
        self._over: deque[UUID] = deque(maxlen=_REMEMBERED)
        self._used_at = time.monotonic()
        self.is_alone = False

    def plan(self, plan: PlannedReception) -> None:
        """A batch was planned; an earlier one of the same writer is over."""
        reception = Reception(plan.token, plan.options, plan.struct_type)
        with self._changed:
            over = [token for token, other in self._planned.items() if other.writer == reception.writer]
            for token in over:
                self._drop(token)
            self._planned[plan.token] = reception
            self._used_at = time.monotonic()
            self._changed.notify_all()

    def of(self, token: UUID) -> Reception | None:
        """The reception of a planned batch; None if the batch is over."""
        with self._changed:
            self._changed.wait_for(lambda: token in self._planned or token in self._over, timeout=_PLAN_SECONDS)
            return self._planned.get(token)

    def end(self, token: UUID) -> None:
        """The batch is committed, or has failed."""
        with self._changed:
            self._drop(token)
            self._used_at = time.monotonic()

    def _drop(self, token: UUID) -> None:
        reception = self._planned.pop(token, None)
        self._over.append(token)
        if reception is not None:
            reception.give_up()

    def wake(self) -> None:
        """Wake transactions that wait: they may have waited too long."""
        with self._changed:
            receptions = list(self._planned.values())
        for reception in receptions:
            reception.look_at_clock()

    def has_work(self) -> bool:
        """Whether a batch may still come, or be finished."""
        with self._changed:
            idle_seconds = time.monotonic() - self._used_at
            is_idle = idle_seconds > (LEFT_ALONE_SECONDS if self.is_alone else IDLE_SECONDS)
            return not is_idle or any(reception.may_be_finished() for reception in self._planned.values())
