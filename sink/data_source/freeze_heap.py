"""
Why is a worker that has nothing to do busy between two batches?

Runs in Spark's Python workers: planner's, tasks', commit. Spark's daemon calls ``gc.collect()`` after every use of a
worker, and that walks over everything which was ever imported: measured, it took most of the time of our workers at
small batches (338 ms of CPU a batch of 1,000 rows before, 165 ms after). Invariant: what is set aside here was alive
after a full collection, so nothing that grows with the stream can be among it.
"""

from __future__ import annotations

import functools
import gc


@functools.cache
def settle(after: str) -> None:  # noqa: ARG001 (the cache's key)
    """
    Set aside what a worker has loaded by now, so that later collections need not look at it.

    Does so once for each kind of work named by ``after``: each imports modules of its own.
    """
    gc.collect()
    gc.freeze()
