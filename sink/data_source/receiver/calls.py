"""
Call a receiver: try all addresses at which it may be, and take the first that answers as it must.

Runs in tasks and in the commit worker. Invariant: a receiver that cannot be reached costs a process two seconds, once;
one that is there and does not answer costs it twenty, once a minute. A line is handed on only if the other side has the
certificate that the plan names or, on this host, is of the same user.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from .folders import is_private
from .line import BROKEN, SILENCE_SECONDS, SILENT, Line, OtherReceiverError, context_for

CONNECT_SECONDS = 2.0
# A receiver that is starting, which the first call has it do, answers after a second; on a busy host after many.
ANSWER_SECONDS = float(SILENCE_SECONDS)
# One that did not answer may have been busy.
_SILENT_SECONDS = 60.0

Address = str | tuple[str, int]
"""As Python's sockets have it: the path of a socket on this host, or an IP address and a port."""

_MOST_REMEMBERED = 256
_Value = TypeVar("_Value")


class NotThereError(OSError):
    """No connection was accepted at any of the addresses of a receiver, or only by another receiver."""


@dataclass(frozen=True)
class Doors:
    """
    Where a receiver is called, and how it is recognized.

    :param certificate: of the one who answers at an address of a network; None if there is none.
    :param secret: what a caller shows.
    """

    addresses: tuple[Address, ...]
    certificate: bytes | None = field(repr=False)
    secret: bytes = field(repr=False)

    def __str__(self) -> str:
        return ", ".join(map(_shown, self.addresses))

    @property
    def is_for_other_hosts(self) -> bool:
        """Whether executors on other hosts may find it."""
        return any(not isinstance(address, str) for address in self.addresses)

    def also_at(self, host: str | None) -> Doors:
        """The same, and its ports at another name of the driver's host."""
        ports = dict.fromkeys(address[1] for address in self.addresses if not isinstance(address, str))
        more = [(host, port) for port in ports] if host else []
        return replace(self, addresses=tuple(dict.fromkeys((*self.addresses, *more))))

    def dial(self, patience: float) -> Line:
        """
        Open a line on which no wait takes longer than ``patience`` seconds, and show the secret.

        :raises NotThereError: if nothing accepts a connection, after two seconds at most.
        :raises OSError: or another of :data:`BROKEN`, if nothing answers as it must.
        """
        known = reached.get(self.secret)
        if known in self.addresses:
            try:
                line = self._answered(known, patience)
            except NotThereError as error:
                # It was there before, so it can be reached, and has ended.
                raise ConnectionError(str(error)) from error.__cause__
        else:
            address, line = self._first_answer(patience)
            _remember(reached, self.secret, address)
        try:
            line.show(self.secret)
        except BaseException:
            line.close()
            raise
        return line

    def note_broken(self, error: BaseException) -> None:
        """Tasks of this process no longer wait for a receiver that was silent for too long, in the middle of a call."""
        if isinstance(error, SILENT):
            _remember(silent, self.secret, (False, time.monotonic()))

    def _first_answer(self, patience: float) -> tuple[Address, Line]:
        errors: list[BaseException] = []
        # This way costs nothing to try, and leads to a process of this host, which needs no encryption.
        for path in (address for address in self.addresses if isinstance(address, str)):
            try:
                return path, self._answered(path, patience)
            except NotThereError as error:
                errors.append(error)
        others = [address for address in self.addresses if not isinstance(address, str)]
        won = _first_of(others, lambda address: self._answered(address, patience), errors, CONNECT_SECONDS + patience)
        if won is not None:
            return won
        # One that is there, and is not the receiver or does not answer, is told from one that is not there.
        there = [error for error in errors if not isinstance(error, NotThereError)]
        raise there[0] if there else _not_there(errors)

    def _answered(self, address: Address, patience: float) -> Line:
        try:
            connected = _connected(address)
        except OSError as error:
            raise NotThereError(f"{_shown(address)}: {error}") from error
        context = context_for(self.certificate) if self.certificate else None
        try:
            return Line(connected, context, self.secret, patience, dialled=True)
        except OtherReceiverError as error:
            raise NotThereError(f"{_shown(address)}: {error}") from error


# By the receivers' secrets, of which each has one of its own.
reached: dict[bytes, Address] = {}
# Those of which a call has cost time; whether it was because it is not there, and when.
silent: dict[bytes, tuple[bool, float]] = {}


def _remember(where: dict[bytes, _Value], secret: bytes, value: _Value) -> None:
    # Each planner's worker may start one, and executors live for months.
    if len(where) >= _MOST_REMEMBERED:
        where.clear()
    where[secret] = value


def _connected(address: Address) -> socket.socket:
    if isinstance(address, str):
        if not is_private(Path(address).parent):
            raise PermissionError("its folder is not private to this user")
        connected = socket.socket(socket.AF_UNIX)
        try:
            connected.settimeout(CONNECT_SECONDS)
            connected.connect(address)
        except BaseException:
            connected.close()
            raise
        return connected
    return socket.create_connection(address, timeout=CONNECT_SECONDS)


def _first_of(
    addresses: Sequence[Address], dial: Callable[[Address], Line], errors: list[BaseException], seconds: float
) -> tuple[Address, Line] | None:
    """The first that answers; the others are hung up on. What went wrong with those that do not is added."""
    deadline = time.monotonic() + seconds
    answers: queue.SimpleQueue[tuple[Address, Line | BaseException]] = queue.SimpleQueue()
    is_decided = threading.Event()

    def ring(address: Address) -> None:
        try:
            line = dial(address)
        except BaseException as error:  # noqa: BLE001 (raised by the one who waits)
            answers.put((address, error))
            return
        answers.put((address, line))
        if is_decided.is_set():
            # The winner has been taken by now.
            _hang_up(answers)

    for address in addresses:
        threading.Thread(target=ring, args=(address,), name="pgonce-call", daemon=True).start()
    for _ in addresses:
        try:
            address, answer = answers.get(timeout=max(0, deadline - time.monotonic()))
        except queue.Empty:
            # Nothing bounds how long the name of a host is looked up.
            is_decided.set()
            _hang_up(answers)
            errors.append(NotThereError("its name was not found in time"))
            break
        if isinstance(answer, Line):
            is_decided.set()
            _hang_up(answers)
            return address, answer
        if not isinstance(answer, BROKEN):
            raise answer
        errors.append(answer)
    return None


def _hang_up(answers: queue.SimpleQueue[tuple[Address, Line | BaseException]]) -> None:
    with suppress(queue.Empty):
        while True:
            _, answer = answers.get_nowait()
            if isinstance(answer, Line):
                answer.close()


def _not_there(errors: Sequence[BaseException]) -> OSError:
    error = NotThereError("; ".join(map(str, errors)) or "it has no address")
    # Told apart, because to be refused costs nothing.
    error.__cause__ = next((one.__cause__ for one in errors if isinstance(one.__cause__, SILENT)), None)
    return error


def _shown(address: Address) -> str:
    return address if isinstance(address, str) else f"{address[0]} port {address[1]}"


class Call:
    """
    A task's call, which goes on while the task makes more rows.

    ``why`` is why there is no line; None as long as there may be one. ``is_unreached`` says whether that is because no
    process was at any of the addresses, and ``is_remembered`` whether an earlier call of this process has found it out.
    """

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._line: Line | None = None
        self._is_unwanted = False
        self._lock = threading.Lock()
        self._calling: threading.Thread | None = None
        self.why: BaseException | None = None
        self.is_unreached = False
        is_unreached, at = silent.get(doors.secret, (False, -_SILENT_SECONDS))
        self.is_remembered = is_unreached or time.monotonic() < at + _SILENT_SECONDS
        if self.is_remembered:
            self.why = TimeoutError("it did not answer before")
            self.is_unreached = is_unreached
        elif doors.secret in reached:
            # A few milliseconds.
            self._dial()
        else:
            self._calling = threading.Thread(target=self._dial, name="pgonce-calling", daemon=True)
            self._calling.start()

    @property
    def is_answered(self) -> bool:
        """Whether there is a line already."""
        return self._line is not None

    def line(self) -> Line | None:
        """Wait for the line, which belongs to the caller then; None if there is none."""
        if self._calling:
            self._calling.join()
        with self._lock:
            line, self._line = self._line, None
        return line

    def drop(self) -> None:
        """It is not needed any more."""
        with self._lock:
            self._is_unwanted = True
            line, self._line = self._line, None
        if line:
            line.close()

    def _dial(self) -> None:
        try:
            line = self._doors.dial(ANSWER_SECONDS)
        except BROKEN as error:
            self.is_unreached = isinstance(error, NotThereError)
            if isinstance(error, SILENT) or isinstance(error.__cause__, SILENT):
                _remember(silent, self._doors.secret, (self.is_unreached, time.monotonic()))
            self.why = error
            return
        except BaseException as error:  # noqa: BLE001 (a task that has no line stages its rows)
            self.why = error
            return
        with self._lock:
            if not self._is_unwanted:
                self._line = line
                return
        line.close()
