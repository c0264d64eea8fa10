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
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from ...positions import EncodedRows
from ..promise import Promise
from ..workers import LOADED_VERSION
from . import folders
from .arrived import LONGEST_GUESS_SECONDS
from .host_process import host_process
from .line import BROKEN, Line, context_of
from .messages import PlannedReception, Start, error_as_message, in_words, origin_from_message, without_rows
from .reception import Reception

_log = logging.getLogger("pgonce.receiver")

_LOOK_SECONDS = 0.5
_SAY_ALIVE_SECONDS = 1.0
# A stranger may connect and send nothing, or keep more lines open than this process may have.
_IDENTIFY_SECONDS = 10
_DEAF_SECONDS = 0.1
# How long it stays after the last plan or line. A commit that comes later reads what was kept without it.
IDLE_SECONDS = 600.0
# The same, if it keeps nothing and no more plans come, because the planner's worker is gone.
LEFT_ALONE_SECONDS = 60.0
# A task may call before the plan has been read, because both are sent at the same time.
_PLAN_SECONDS = 10.0


def run_receiver() -> None:
    """Run until there is nothing left to do; the arguments are the descriptors of the sockets to listen at."""
    listening = [socket.socket(fileno=int(descriptor)) for descriptor in sys.argv[1:]]
    start: Start = pickle.load(sys.stdin.buffer)  # noqa: S301 (from the process that started this one)
    if start.version != LOADED_VERSION:
        # Installed since the planner's worker began. Without a receiver, tasks stage their rows.
        _log.error("the planner has pgonce %s, and its receiver has %s", start.version, LOADED_VERSION)
        return
    # Before it is told of any batch.
    folders.make_folder(Path(start.folder), start.daemon, host_process(os.getpid()))
    receptions = Receptions(Path(start.folder))
    _beside(_take_plans, receptions)
    context = context_of(start.identity) if start.identity else None
    for one in listening:
        _beside(_answer, one, context, start.secret, receptions)
    while receptions.has_work() and start.daemon.lives():
        time.sleep(_LOOK_SECONDS)
    receptions.give_up()
    # While the daemon lives, a commit may read what is kept.
    if not (start.daemon.lives() and receptions.has_rows()):
        folders.remove(Path(start.folder))
    # Not by returning, because threads may be waiting. Postgres rolls back what is open.
    os._exit(0)


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
            with receptions.at_work():
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
    if reception is None or not reception.arrived.open(origin_from_message(message["origin"])):
        line.say(taken=False)
        return
    attempt = message["partition_id"], message["attempt_id"]
    try:
        line.say(taken=True)
        while (rows := line.next_rows()).body:
            # If they are not kept, the task stages them, and those that it has sent by then.
            line.say(kept=reception.take(*attempt, rows))
    except BaseException:
        reception.arrived.break_off(*attempt)
        raise


def _finish(line: Line, message: dict[str, Any], receptions: Receptions, token: UUID) -> None:
    reception = receptions.of(token)
    try:
        inline = tuple(line.next_rows() for _ in range(message["inline"]))
        committing = ThreadPoolExecutor(1).submit(_committed, reception, message, inline)
        while not wait([committing], _SAY_ALIVE_SECONDS).done:
            line.say(alive=True)
    finally:
        # Even if the commit worker has hung up, because it then commits the batch without this process. What is kept
        # stays.
        if reception is not None:
            reception.arrived.give_up()
    line.say(**committing.result())
    if "verdict" in committing.result():
        receptions.forget(token)


def _committed(reception: Reception | None, message: dict[str, Any], inline: tuple[EncodedRows, ...]) -> dict[str, Any]:
    """What became of the batch, as the commit worker is told it."""
    if reception is None:
        dropped = "The receiver has no rows of this batch: it drops them when it is told that a batch has failed."
        return {"error": error_as_message(without_rows(dropped))}
    try:
        promise = Promise.from_message(message["promise"], inline)
        return {"verdict": reception.finish(origin_from_message(message["origin"]), promise).name}
    except Exception as error:  # noqa: BLE001 (the commit worker raises it)
        return {"error": error_as_message(error)}


class Receptions:
    """The batches whose rows may still be wanted; ``folder`` keeps them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = threading.Condition()
        # By their writers.
        self._known: dict[tuple[str, str], Reception] = {}
        # For how many seconds the rows of a writer's last batch came.
        self._lasted: dict[tuple[str, str], float] = {}
        self._lines = 0
        self._used_at = time.monotonic()
        self.is_alone = False

    def plan(self, plan: PlannedReception) -> None:
        """A batch was planned; an earlier one of the same writer is over."""
        with self._changed:
            if plan.writer in self._known:
                self.forget(self._known[plan.writer].token)
            # Nothing is won by copying for a minute what is then rolled back.
            may_guess = self._lasted.get(plan.writer, 0.0) <= LONGEST_GUESS_SECONDS
            path = folders.kept_file(self._folder, plan.token)
            self._known[plan.writer] = Reception(plan, path, may_guess=may_guess)
            self._used_at = time.monotonic()
            self._changed.notify_all()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """While a line is open."""
        with self._changed:
            self._lines += 1
        try:
            yield
        finally:
            with self._changed:
                self._lines -= 1
                self._used_at = time.monotonic()

    def of(self, token: UUID) -> Reception | None:
        """The reception of a planned batch; None if the batch was committed, or has failed."""
        with self._changed:
            self._changed.wait_for(lambda: any(one.token == token for one in self._known.values()), _PLAN_SECONDS)
            return next((one for one in self._known.values() if one.token == token), None)

    def forget(self, token: UUID) -> None:
        """The batch is committed, or has failed."""
        with self._changed:
            for writer, reception in list(self._known.items()):
                if reception.token == token:
                    self._lasted[writer] = reception.arrived.lasted
                    reception.arrived.forget()
                    del self._known[writer]

    def give_up(self) -> None:
        """No batch is committed here any more."""
        with self._changed:
            for reception in self._known.values():
                reception.arrived.give_up()

    def has_rows(self) -> bool:
        """Whether rows are kept that may still be wanted."""
        with self._changed:
            return any(reception.arrived.bodies for reception in self._known.values())

    def has_work(self) -> bool:
        """Whether a batch may still come, or be finished here."""
        longest = LEFT_ALONE_SECONDS if self.is_alone and not self.has_rows() else IDLE_SECONDS
        return self._lines > 0 or time.monotonic() - self._used_at < longest
