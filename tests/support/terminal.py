"""
A real terminal with a program in it, which a test reads.

Runs in: pytest; the program is a process of its own. Invariant: the environment says nothing of the terminal or the
locale of those who run the tests.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from contextlib import suppress
from typing import Any

from support.patience import PATIENCE_SECONDS

_SAYS = ("LC_", "LANG", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TERM", "COLORTERM", "TTY_", "TEXTUAL")


class Terminal:
    """Python with these arguments, in a terminal of 80 columns; ``stdout`` may lead elsewhere."""

    def __init__(self, *arguments: str, stdout: Any = None) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SAYS)}
        self.process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=slave,
            stdout=slave if stdout is None else stdout,
            stderr=slave,
            start_new_session=True,
            env={**inherited, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.written = b""

    def wait(self) -> int:
        """Read until the program ends, and return its exit code."""
        end = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, self.written[-4000:]
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        # Nothing there yet, or the program has closed its side.
        with suppress(BlockingIOError, OSError):
            while True:
                self.written += os.read(self._master, 1 << 16)
        time.sleep(0.02)

    def close(self) -> None:
        """End the program, whatever it does."""
        self.process.kill()
        self.process.wait()
        os.close(self._master)
