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
from dataclasses import dataclass, field
from typing import TypeVar

from ..errors import PgonceError
from ..log_lines import scrub
from .translate import driver_error, passes

_T = TypeVar("_T")

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


@dataclass
class Backoff:
    """Pauses for one piece of work that may be tried again for ``seconds``."""

    seconds: float
    _deadline: float | None = field(default=None, init=False)
    _pause: float = field(default=_FIRST_PAUSE_SECONDS, init=False)

    def next_pause(self) -> float | None:
        """Seconds to wait before the next try, longer each time; None when no try may begin any more."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self.seconds
        if now + self._pause > self._deadline:
            return None
        # A random part, so that processes that failed at the same moment do not all return at the same moment.
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 (no secret hangs on it)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
        return pause


def patiently(
    work: Callable[[], _T],
    seconds: float,
    *,
    log: logging.Logger,
    trying: str,
    failed: Callable[[Exception, bool], Exception],
    may_pass: Callable[[Exception], bool] = passes,
) -> _T:
    """
    What ``work`` returns. It is done again while its errors pass by themselves, for ``seconds``.

    :param log: told of each error that is not the last one.
    :param trying: what is done again; the log puts this text before the time.
    :param failed: makes the error that is raised, from the last one and whether the time was up: no error of psycopg
        may get further, because it may show a row or a password.
    :param may_pass: which errors of Postgres, or of ours, may be gone at the next try.
    """
    backoff = Backoff(seconds)
    while True:
        try:
            return work()
        except Exception as error:
            if not isinstance(error, PgonceError) and driver_error(error) is None:
                raise
            is_passing = may_pass(error)
            pause = backoff.next_pause() if is_passing else None
            if pause is None:
                final = failed(error, is_passing)
                if final is error:
                    raise
                # Without its cause: a traceback would print the DETAIL, and there Postgres repeats a whole row.
                raise final.with_traceback(error.__traceback__) from None
            log.warning("%s in %.1f s: %s", trying, pause, in_one_line(error))
        time.sleep(pause)


def in_one_line(error: Exception) -> str:
    """The words of an error, without passwords and line breaks."""
    return scrub(" ".join(str(driver_error(error) or error).split())).rstrip(".")
