"""
Try work again after errors that pass by themselves, with growing pauses and for a bounded time.

Runs where Postgres is spoken to: in tasks, in the commit worker, on the driver and in the command line. Invariant:
the time counts from the first error, so that work which takes long uses none of it.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from types import TracebackType

from ..errors import PgonceError
from ..log_lines import scrub
from .translate import driver_error, passes

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


class Tries:
    """
    The tries of one piece of work, which goes on while its errors pass by themselves, for ``seconds``.

    A block is a try: after an error that may pass, it ends without one, and the next one begins after a pause::

        tries = Tries(...)
        while True:
            with tries:
                return work()

    :param log: told of each error that is not the last one.
    :param trying: what is done again; the log puts this text before the time.
    :param failed: makes the error that is raised, from the last one: no error of psycopg may get further, because it
        may show a row or a password.
    """

    def __init__(
        self, seconds: float, *, log: logging.Logger, trying: str, failed: Callable[[Exception], Exception]
    ) -> None:
        self._seconds, self._log, self._trying, self._failed = seconds, log, trying, failed
        self._deadline: float | None = None
        self._longest = _FIRST_PAUSE_SECONDS
        self._pause = 0.0

    def __enter__(self) -> object:
        """Begin a try; each but the first one waits."""
        time.sleep(self._pause)
        return self

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        """After an error, whether another try follows; :raises: what ``failed`` makes of the last one."""
        if not isinstance(error, Exception) or (not isinstance(error, PgonceError) and driver_error(error) is None):
            return False
        pause = self._next_pause() if self.may_pass(error) else None
        if pause is None:
            final = self._failed(error)
            if final is error:
                return False
            # Without its cause: a traceback would print the DETAIL, and there Postgres repeats a whole row.
            raise final.with_traceback(error.__traceback__) from None
        self._log.warning("%s in %.1f s: %s", self._trying, pause, in_one_line(error))
        self._pause = pause
        return True

    def _next_pause(self) -> float | None:
        """Seconds to wait before the next try, longer each time; None when no try may begin any more."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now + self._longest > self._deadline:
            return None
        # A random part, so that processes that failed at the same moment do not all return at the same moment.
        pause = self._longest * random.uniform(0.5, 1.0)  # noqa: S311 (no secret hangs on it)
        self._longest = min(self._longest * 2, _LONGEST_PAUSE_SECONDS)
        return pause

    def may_pass(self, error: Exception) -> bool:
        """Whether this error, of Postgres or of ours, may be gone at the next try."""
        return passes(error)


def in_one_line(error: Exception) -> str:
    """The words of an error, without passwords and line breaks."""
    return scrub(" ".join(str(driver_error(error) or error).split())).rstrip(".")
