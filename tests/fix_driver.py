"""
How is a Spark driver killed, and what may be left of it?

Runs in: pytest; the driver is a Python script in a session of its own. Invariant: nothing of it outlives the
test: not its JVM, and not its Python workers, which put themselves into another process group but not
another session.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil
import pytest
from fix_spark import spark_environment
from patience import PATIENCE_SECONDS


class Driver:
    """A running script; :meth:`sigkill` is the fault that most tests put to it."""

    def __init__(self, script: Path, arguments: list[str], env: Mapping[str, str], directory: Path) -> None:
        self._log = directory / f"{script.stem}-{time.monotonic_ns()}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(script), *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env={**os.environ, **spark_environment(), **env},
                start_new_session=True,
            )
        self.pid = self._process.pid

    def output(self) -> str:
        """All that the driver, its JVM and its workers have printed so far."""
        return self._log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the condition holds; fail with the driver's output when it ends before that."""
        until = time.monotonic() + seconds
        while not condition():
            if self._process.poll() is not None and not condition():
                self._fail(f"The driver ended with {self._process.returncode} before {what}.")
            if time.monotonic() > until:
                self._fail(f"Waited {seconds:.0f} s in vain for {what}.")
            time.sleep(0.02)

    def wait_for_output(self, text: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until the driver has printed a text."""
        self.wait_for(lambda: text in self.output(), f"it printed {text!r}", seconds)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Wait for the driver's own end, and give its exit status."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return self._fail(f"The driver did not end in {seconds:.0f} s.")

    def sigkill(self, *, workers: bool = True) -> None:
        """
        SIGKILL the driver's Python and JVM, and return when all is gone.

        :param workers: False leaves the Python workers to find out by themselves, as when only the driver is
            shot: one in the middle of a commit may still finish it.
        """
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        until = time.monotonic() + 30
        while left := self.processes():
            if time.monotonic() > until:
                self._fail(f"These outlived the driver by 30 s: {left}")
            for process in left if workers else ():
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.02)

    def processes(self) -> list[psutil.Process]:
        """What lives of the driver's session: JVM, Python daemons and workers, and the driver itself."""
        return [process for process in psutil.process_iter() if self._is_of_this_session(process)]

    def _is_of_this_session(self, process: psutil.Process) -> bool:
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            return os.getsid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE
        return False

    def _fail(self, reason: str) -> NoReturn:
        pytest.fail(f"{reason} Its output:\n{self.output()[-8000:]}")


def wait_until(condition: Callable[[], object], seconds: float = 10) -> bool:
    """
    Wait until the condition holds; whether it did.

    :param seconds: where it is not Spark that is waited for, few: what comes much later comes for another reason.
    """
    until = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return bool(holds)


def with_tests_on_path(*more: str) -> dict[str, str]:
    """Environment of a driver that imports from the tests, and from ``more`` of the project's folders."""
    tests = Path(__file__).parent
    path = [str(tests), *(str(tests.parent / folder) for folder in more), os.environ.get("PYTHONPATH", "")]
    return {"PYTHONPATH": os.pathsep.join(filter(None, path))}


@pytest.fixture
def start_driver(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Start a script as a driver: ``start_driver(script, *arguments, env={...})``."""
    drivers: list[Driver] = []

    def start(script: Path, *arguments: str, env: Mapping[str, str] | None = None) -> Driver:
        drivers.append(Driver(Path(script), [str(argument) for argument in arguments], env or {}, tmp_path))
        return drivers[-1]

    yield start
    for driver in drivers:
        driver.sigkill()
