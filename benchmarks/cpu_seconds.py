"""
Measure how much CPU a contender and Postgres use, in stretches of a run that are known only afterwards.

Runs on the driver. Invariant: a process counts together with all that it has started, even if those have ended; what
was used between two samples is divided by time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import psutil
from measure import beside
from stretches import Stretch


class Used(NamedTuple):
    """CPU seconds."""

    contender: float
    postgres: float


@dataclass
class CpuWatch:
    """
    Samples the CPU seconds of a contender and of Postgres.

    :param postgres_pid: the postmaster.
    :param bystanders: processes that are not part of a contender, though this process has started them.
    """

    postgres_pid: int
    bystanders: Collection[int] = ()
    interval_seconds: float = 0.5
    _samples: list[tuple[float, float, float]] = field(default_factory=list)

    @contextmanager
    def watching(self, contender_pid: int) -> Iterator[None]:
        """Sample while the block runs; the contender is the process with all its children."""
        self._samples = [self._sample(contender_pid)]

        def sample_until(done: threading.Event) -> None:
            while not done.wait(self.interval_seconds):
                self._samples.append(self._sample(contender_pid))

        with beside(sample_until):
            yield
        self._samples.append(self._sample(contender_pid))

    def used(self, stretches: Sequence[Stretch]) -> Used:
        """What was used in all the stretches together, which must be in the last block."""
        at, *counters = np.array(self._samples).T
        between = [sum(np.ptp(np.interp(stretch, at, seen)) for stretch in stretches) for seen in counters]
        return Used(*map(float, between))

    def _sample(self, contender_pid: int) -> tuple[float, float, float]:
        contender, postgres = _seconds(contender_pid, self.bystanders), _seconds(self.postgres_pid, ())
        return time.time(), contender, postgres


def _seconds(pid: int, bystanders: Collection[int]) -> float:
    parent = psutil.Process(pid)
    total = 0.0
    for process in (parent, *parent.children(recursive=True)):
        if process.pid not in bystanders:
            with suppress(psutil.NoSuchProcess):
                # User and system, its own and those of children that it has waited for.
                total += sum(process.cpu_times()[:4])
    return total
