"""
For how long is work tried again after errors that pass, and when is the next try?

Pure except for the clock: runs in tasks, in the commit worker, on the driver and in the command line. Invariant: the
time counts from the first error, so that work which takes long uses none of it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0


RETRY_SECONDS = 120.0
"""The default for how long: longer than Postgres takes to restart, or to fail over."""


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
