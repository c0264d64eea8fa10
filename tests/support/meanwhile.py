"""
Do a step again and again while something else runs.

Runs in: a thread of pytest's process. Invariant: a step is done at least once, and one that fails makes the test fail.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

Result = TypeVar("Result")


@contextmanager
def meanwhile(step: Callable[[], Result], *, every: float = 0.0) -> Iterator[list[Result]]:
    """Do a step again and again, ``every`` so many seconds, until the block ends; gives what each step returned."""
    results: list[Result] = []
    is_over = threading.Event()

    def run() -> None:
        results.append(step())
        while not is_over.wait(every):
            results.append(step())

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            yield results
        finally:
            is_over.set()
        running.result()
