"""
The receiver: takes the rows of batches that its planner's worker has planned, and commits them.

A process of its own, on the driver, started by the planner's worker (Spark ends idle workers after a minute, and a
batch may last longer). Invariant: it ends with Spark's daemon, and soon after its planner if nothing is left to do. Of
each writer, one batch is expected at a time. A task hears that rows are kept once they are in a file that outlives this
process; the file is removed when the batch is done or has failed, never because this process could not commit it.
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
from pathlib import Path
from typing import Any
from uuid import UUID

from pgonce.offsets_store.verdict.decide import Verdict

from ...identity.from_checkpoint import Origin
from ..promise import Promise
from ..workers import LOADED_VERSION
from . import folders
from .arrived import LONGEST_GUESS_SECONDS
from .host_process import host_process
from .line import BROKEN, Line, context_of
from .messages import (
    PlannedReception,
    Start,
    error_as_message,
    in_words,
    origin_from_message,
    without_rows,
)
from .reception import Reception, writer_of

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
# How many batches that are forgotten are remembered: a call for one of them need not wait for its plan.
_REMEMBERED = 100
# Spark's daemon ends a little before its driver, if that ends as it should.
_DRIVER_ENDS_SECONDS = 5.0


def run_receiver() -> None:
    """Run until there is nothing left to do; the arguments are the descriptors of the sockets to listen at."""
    listening = [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]]
    start: Start = pickle.load(sys.stdin.buffer)  # noqa: S301 (from the process that started this one)
    if start.version != LOADED_VERSION:
        # Installed since the planner's worker began. Without a receiver, tasks stage their rows.
        _log.error("the planner has pgonce %s, and its receiver has %s", start.version, LOADED_VERSION)
        return
    # Before it is told of any batch.
    folders.make_folder(Path(start.folder), start.driver, start.daemon, host_process(os.getpid()))
    receptions = Receptions(Path(start.folder))
    _beside(_take_plans, receptions)
    context = context_of(start.identity) if start.identity else None
    for one in listening:
        _beside(_answer, one, context, start.secret, receptions)
    while receptions.has_work() and start.daemon.lives():
        receptions.wake()
        time.sleep(_LOOK_SECONDS)
    receptions.give_up()
    if not _may_be_wanted(receptions, start):
        folders.remove(Path(start.folder))
    # Not by returning, because threads may be waiting. Postgres rolls back what is open.
    os._exit(0)


def _may_be_wanted(receptions: Receptions, start: Start) -> bool:
    """Whether what is kept may be committed without this process, by a worker of this daemon or of the next one."""
    if start.daemon.lives():
        return receptions.has_rows()
    deadline = time.monotonic() + _DRIVER_ENDS_SECONDS
    while receptions.has_rows() and start.driver.lives():
        if time.monotonic() >= deadline:
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _beside(target: Callable[..., None], *arguments: Any) -> None:
    threading.Thread(target=target, args=arguments, daemon=True).start()


def _take_plans(receptions: Receptions) -> None:
    try:
        while True:
            receptions.plan(pickle.load(sys.stdin.buffer))  # noqa: S301 (as above)
    except EOFError:
        receptions.is_alone = True
    except Exception:  # noqa: BLE001 (without plans every task would wait in vain)
        _log.exception("the message of the planner's worker cannot be read")
        os._exit(1)


def _answer(listening: socket.socket, context: ssl.SSLContext | None, secret: bytes, receptions: Receptions) -> None:
    while True:
        try:
            connected, _ = listening.accept()
            _beside(_converse, connected, context, secret, receptions)
        except (OSError, RuntimeError) as error:
            _log.warning("a connection could not be accepted: %s", error)
            time.sleep(_DEAF_SECONDS)


def _converse(connected: socket.socket, context: ssl.SSLContext | None, secret: bytes, receptions: Receptions) -> None:
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
                    receptions.forget(token)
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
        while (rows := line.next_rows()).body:
            # If they are not kept, the task stages them, and those that it has sent by then.
            line.say(kept=reception.take(sending, rows))
        reception.end(sending, rows.count)
    finally:
        reception.close(sending)


def _finish(line: Line, message: dict[str, Any], receptions: Receptions, token: UUID) -> None:
    answers: list[dict[str, Any]] = []

    def commit() -> None:
        try:
            promise = Promise.from_message(message["promise"], inline)
            verdict = _committed(receptions.of(token), origin_from_message(message["origin"]), promise)
            answers.append({"verdict": verdict.name})
        except Exception as error:  # noqa: BLE001 (the commit worker raises it)
            answers.append({"error": error_as_message(error)})

    try:
        inline = tuple(line.next_rows() for _ in range(message["inline"]))
        committing = threading.Thread(target=commit, daemon=True)
        committing.start()
        while committing.is_alive():
            committing.join(_SAY_ALIVE_SECONDS)
            if committing.is_alive():
                line.say(alive=True)
    finally:
        # Even if the commit worker has hung up, because it then commits the batch without this process.
        receptions.end(token)
    line.say(**answers[0])
    if "verdict" in answers[0]:
        receptions.forget(token)


def _committed(reception: Reception | None, origin: Origin, promise: Promise) -> Verdict:
    if reception is None:
        raise without_rows(
            "The receiver has no rows of this batch: it drops them when it is told that a batch has failed."
        )
    return reception.finish(origin, promise)


class Receptions:
    """The batches whose rows may still be wanted; ``folder`` keeps them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        self._known: dict[UUID, Reception] = {}
        self._forgotten: deque[UUID] = deque(maxlen=_REMEMBERED)
        # For how many seconds the rows of a writer's last batch came.
        self._lasted: dict[tuple[str, str], float] = {}
        self._used_at = time.monotonic()
        self.is_alone = False

    def plan(self, plan: PlannedReception) -> None:
        """A batch was planned; an earlier one of the same writer is over."""
        path = folders.kept_file(self._folder, plan.token)
        writer = writer_of(plan.options)
        with self._changed:
            for token, other in list(self._known.items()):
                if other.writer == writer:
                    self.forget(token)
            # Nothing is won by copying for a minute what is then rolled back.
            may_guess = self._lasted.get(writer, 0.0) <= LONGEST_GUESS_SECONDS
            reception = Reception(plan, path, may_guess=may_guess)
            self._known[plan.token] = reception
            self._used_at = time.monotonic()
            self._changed.notify_all()

    def of(self, token: UUID) -> Reception | None:
        """The reception of a planned batch; None if the batch is over."""
        with self._changed:
            self._changed.wait_for(lambda: token in self._known or token in self._forgotten, timeout=_PLAN_SECONDS)
            reception = self._known.get(token)
            return None if reception is None or reception.is_over else reception

    def end(self, token: UUID) -> None:
        """The batch is not committed here any more; what is kept of it stays."""
        with self._changed:
            self._used_at = time.monotonic()
            reception = self._known.get(token)
            if reception is not None and not reception.is_over:
                reception.give_up()
                self._lasted[reception.writer] = reception.lasted

    def forget(self, token: UUID) -> None:
        """The batch is committed, or has failed."""
        with self._changed:
            self.end(token)
            self._forgotten.append(token)
            reception = self._known.pop(token, None)
            if reception is not None:
                reception.forget()

    def give_up(self) -> None:
        """No batch is committed here any more."""
        for reception in self._all():
            reception.give_up()

    def wake(self) -> None:
        """Wake transactions that wait: they may have waited too long."""
        for reception in self._all():
            reception.look_at_clock()

    def has_rows(self) -> bool:
        """Whether rows are kept that may still be wanted."""
        return any(reception.has_rows for reception in self._all())

    def has_work(self) -> bool:
        """Whether a batch may still come, or be finished."""
        idle_seconds = time.monotonic() - self._used_at
        is_idle = idle_seconds > (LEFT_ALONE_SECONDS if self.is_alone else IDLE_SECONDS)
        return not is_idle or any(one.may_be_finished(is_alone=self.is_alone) for one in self._all())

    def _all(self) -> list[Reception]:
        with self._changed:
            return list(self._known.values())
