"""
Faults of the process that takes a batch's rows while tasks still make others.

Runs in: the laboratory. Invariant: only a process that is a receiver, by its command line, counts as one.
"""

from __future__ import annotations

import random
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


@dataclass(frozen=True)
class KillReceiver(_ReceiverFault):
    """SIGKILL of the receiver at a moment of its commit."""

    moment: Moment

    @property
    def name(self) -> str:
        return f"receiver SIGKILL {self.moment}"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, self.moment)
        if hold is None:
            return MISSED
        at = time.monotonic()
        receiver = _receiver(hold)
        if receiver:
            receiver.kill()
        hold.cut()
        return Hit([workload], at) if receiver else MISSED


@dataclass(frozen=True)
class FreezeReceiver(_ReceiverFault):
    """SIGSTOP of the receiver at a moment, and SIGCONT: soon, or when its batch is done without it."""

    moment: Moment
    soon: bool

    @property
    def name(self) -> str:
        return f"receiver frozen {self.moment}, woken {'soon' if self.soon else 'when its batch is done'}"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, self.moment)
        if hold is None:
            return MISSED
        at = time.monotonic()
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
        return Hit([workload], at)


def _receiver(hold: Hold) -> psutil.Process | None:
    """The process whose connection is held, if it is a receiver."""
    process = process_of_connection(hold.client)
    return process if process and "pgonce.sink.data_source.receiver" in command_of(process) else None
