"""
Run a server that is a JVM.

Runs in: any process; the JVM is in a session of its own. Invariant: it lives as long as its owner and no longer, and
leaves no process and no directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from maven import java
from safety_net import SafetyNet

_STOP_SECONDS = 15.0


class Jvm:
    """
    One JVM at a time, and a temporary directory ``home`` that stays from one to the next, until :meth:`remove`.

    :param name: what runs there; the directory's name begins with it, and errors name it.
    :param env: the whole environment; None for this process's own.
    :param within: a command that starts another one in some other place, such as ``ip netns exec NAME``.
    :raises MissingTool: if Java is missing.
    """

    def __init__(
        self,
        name: str,
        jars: Sequence[Path],
        options: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        within: Sequence[str] = (),
    ) -> None:
        program = java()
        self._name = name
        self.home = Path(tempfile.mkdtemp(prefix=f"pgonce-{name}-"))
        # Native libraries are unpacked there, and a JVM that is killed leaves them behind.
        options = (*options, f"-Djava.io.tmpdir={self.home}")
        self._env = env
        self._command = [*within, program, *options, "-cp", os.pathsep.join(map(str, jars))]
        self._process: subprocess.Popen[bytes] | None = None
        self._net: SafetyNet | None = None

    @property
    def pid(self) -> int:
        """Process id of the running JVM."""
        if self._process is None:
            raise RuntimeError("It was not started.")
        return self._process.pid

    def runs(self) -> bool:
        """Whether it was started and has not ended, by itself or otherwise."""
        return self._process is not None and self._process.poll() is None

    def check(self) -> None:
        """:raises RuntimeError: if it has ended."""
        if not self.runs():
            raise RuntimeError(f"The JVM of {self._name} has ended; the end of its log: {self.log_end()}")

    def run(self, *arguments: str) -> None:
        """Run a class that ends by itself, and return when it has."""
        command = [*self._command, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=self.home)
        if done.returncode != 0:
            raise RuntimeError(f"{arguments[0]} failed: {done.stdout}{done.stderr}")

    def start(self, *arguments: str) -> None:
        """Start a class; what it prints goes into the log."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._command, *arguments],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env=self._env,
                start_new_session=True,
            )
        self._net = SafetyNet(self._process.pid, signal.SIGKILL, self.home)

    def end(self, how: signal.Signals) -> None:
        """Signal the JVM and return when it is gone; if it does not end, a SIGKILL follows."""
        if self._process:
            self._process.send_signal(how)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
        if self._net:
            self._net.release()
            self._net = None

    def remove(self) -> None:
        """Stop the JVM and delete its directory."""
        self.end(signal.SIGTERM)
        shutil.rmtree(self.home, ignore_errors=True)

    def log_text(self) -> str:
        """All that it has printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def log_end(self) -> str:
        """The last 4,000 characters it has printed."""
        return self.log_text()[-4000:]

    @property
    def _log(self) -> Path:
        return self.home / "log"
