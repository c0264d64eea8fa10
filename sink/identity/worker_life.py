"""
How long does a Python worker of a Spark Connect server live?

Runs in: the Python worker that a Connect server starts for a foreachBatch function. Invariant: no longer than its
server, and a second or two.
"""

from __future__ import annotations

import os
import threading
import time
from functools import cache

_LOOK_SECONDS = 1.0


@cache
def end_with_server() -> None:
    """
    End this process soon after the one that started it, in a thread; a transaction that is open then is rolled back.

    Without this, a worker that waits for a server that does not answer would keep its writer's row, and the checkpoint
    that it has claimed, for ten minutes.
    """
    threading.Thread(target=_end_with, args=[os.getppid()], name="pgonce-orphaned", daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)
