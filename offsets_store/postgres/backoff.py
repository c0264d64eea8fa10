"""
How long is the same tried again after errors that pass, and when is the next try?

Pure but for the clock: runs in tasks, in the commit worker, on the driver and in the command line. Invariant: the time
counts from the first error on, so that work which takes long by itself uses none of it up.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


RETRY_SECONDS = 120.0
"""How long, unless the user says otherwise: longer than Postgres takes to restart, or to fail over."""


@dataclass
class Backoff:
    """Pauses for one piece of work that may be tried again for ``seconds``."""

    seconds: float
    _deadline: float | None = field(default=None, init=False)
    _pause: float = field(default=_FIRST_PAUSE_SECONDS, init=False)

    def next_pause(self) -> float | None:
        """Seconds to wait before the next try, longer each time; None where no try may begin any more."""
        now = time.monotonic()
        if self._deadline is None:
            self._deadline = now + self.seconds
        if now + self._pause > self._deadline:
            return None
        # Jitter, so that processes that failed together do not return together.
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 (no secret hangs on it)
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)
        return pause
