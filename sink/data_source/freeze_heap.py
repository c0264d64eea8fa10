"""
Why is a worker that has nothing to do busy between two batches?

Runs in Spark's Python workers: the planner's, those of tasks, and the commit worker. Spark's daemon calls
``gc.collect()`` after every use of a worker, which walks over everything that was ever imported. With small batches
that took most of our workers' time (338 ms of CPU a batch of 1,000 rows before, 165 ms after). Invariant: what is set
aside here was alive after a full collection, so nothing that grows with the stream can be among it.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle(after: str) -> None:  # noqa: ARG001 (the cache's key)
    """
    Set aside what a worker has loaded by now, so that later collections need not look at it.

    Done once for each kind of work, which ``after`` names, because each kind imports modules of its own.
    """
    gc.collect()
    gc.freeze()
