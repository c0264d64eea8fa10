"""
Faults of the process that takes a batch's rows while tasks still make others.

Runs in: the laboratory. Invariant: only a process that is a receiver, by its command line, counts as one. Whatever
happens to it, its query goes on by itself.
"""

from __future__ import annotations

import random
import resource
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
from chaos.faults import MISSED, Fault, Hit, Moment, held
from chaos.site import Site, command_of, process_of_connection
from chaos.workloads import WORKLOADS
from support.fixtures.proxy import Hold


class _ReceiverFault(Fault):
    def fits_workload(self, workload: str) -> bool:
        return WORKLOADS[workload].commits_in == "receiver"

    def _hit(self, site: Site, workload: str, at: float, failures: int) -> Hit:
        """Wait until the batch is done that was struck; the query must not have failed, as it had so often before."""
        batch_id = site.planned(workload)
        site.wait_until(lambda: site.committed(workload) >= batch_id, f"batch {batch_id} of {workload}")
        wrong = [f"the query {workload} failed because of its receiver"] if site.failures(workload) > failures else []
        return Hit([workload], at, tuple(wrong))


@dataclass(frozen=True)
class KillReceiver(_ReceiverFault):
    """SIGKILL of the receiver at a moment of its commit."""

    moment: Moment

    shown = "receiver SIGKILL {moment}"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, self.moment)
        if hold is None:
            return MISSED
        at, failures = time.monotonic(), site.failures(workload)
        receiver = _receiver(hold)
        if receiver:
            receiver.kill()
        hold.cut()
        return self._hit(site, workload, at, failures) if receiver else MISSED


@dataclass(frozen=True)
class FreezeReceiver(_ReceiverFault):
    """SIGSTOP of the receiver, and SIGCONT: soon, or when its batch is done without it, if it still lives then."""

    moment: Moment
    soon: bool

    @property
    def name(self) -> str:
        return f"receiver frozen {self.moment}, woken {'soon' if self.soon else 'when its batch is done'}"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, self.moment)
        if hold is None:
            return MISSED
        at, failures = time.monotonic(), site.failures(workload)
        receiver = _receiver(hold)
        if receiver is None:
            hold.release()
            return MISSED
        receiver.suspend()
        hold.release()
        batch_id = site.planned(workload)
        try:
            if self.soon:
                time.sleep(dice.uniform(0.5, 3))
            else:
                site.wait_until(lambda: site.committed(workload) >= batch_id, f"batch {batch_id} without its receiver")
        finally:
            with suppress(psutil.NoSuchProcess):
                receiver.resume()
        return self._hit(site, workload, at, failures)


@dataclass(frozen=True)
class FillDisk(_ReceiverFault):
    """The receiver has no room for more rows, for two batches: the kernel says so as it does of a full disk."""

    shown = "receiver without room"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, "in_copy")
        if hold is None:
            return MISSED
        receiver = _receiver(hold)
        hold.release()
        if receiver is None:
            return MISSED
        at, failures = time.monotonic(), site.failures(workload)
        try:
            _limit(receiver, dice.randrange(100))
            until = site.planned(workload) + 2
            site.wait_until(lambda: site.committed(workload) >= until, f"batch {until} of {workload}")
        finally:
            _limit(receiver, resource.RLIM_INFINITY)
        return self._hit(site, workload, at, failures)


def _limit(receiver: psutil.Process, size: int) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(receiver.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def _receiver(hold: Hold) -> psutil.Process | None:
    """The process whose connection is held, if it is a receiver."""
    process = process_of_connection(hold.client)
    return process if process and "pgonce.sink.data_source.receiver" in command_of(process) else None
