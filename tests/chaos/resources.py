"""
Faults in which something runs out: the server's disk, the memory of a process of pgonce's, packets on their way.

Runs in: the laboratory. Invariant: it is there again when the fault ends, and a fault that nobody has felt has missed.
"""

from __future__ import annotations

import random
import resource
import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
from black_hole import BlackHole
from chaos.faults import MISSED, Fault, Hit, held, wait_for_flight
from chaos.site import Setting, Site, process_of_connection
from chaos.workloads import WORKLOADS
from support.fixtures.driver import wait_until

_SECONDS = (4.0, 9.0)


@dataclass(frozen=True)
class ServersDiskFull(Fault):
    """The disk of Postgres, with its log, is full for a while. If it stops for that, it is started again."""

    shown = "server's disk full"

    def fits_setting(self, setting: Setting) -> bool:
        return setting.small_disk

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        assert site.disk
        hit, at, before = wait_for_flight(site), time.monotonic(), _complaints(site)
        with site.disk.full():
            # A segment of the log that was made ahead is filled first.
            wait_until(lambda: _complaints(site) > before, dice.uniform(*_SECONDS))
            time.sleep(dice.uniform(0, 1))
        site.postgres.start_again()
        return Hit(hit, at) if _complaints(site) > before else MISSED


def _complaints(site: Site) -> int:
    return site.postgres.log_text().count("No space left on device")


@dataclass(frozen=True)
class OutOfMemory(Fault):
    """The worker that speaks to Postgres gets no more memory from its connection on."""

    shown = "worker without memory"

    def fits_workload(self, workload: str) -> bool:
        return WORKLOADS[workload].commits_in in ("worker", "receiver")

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, "connect")
        if hold is None:
            return MISSED
        process = process_of_connection(hold.client)
        if process is None:
            hold.release()
            return MISSED
        at, failures, own = time.monotonic(), site.failures(workload), process.pid
        try:
            _limit(own, 1)
            hold.release()
            wait_until(
                lambda: site.failures(workload) > failures or not psutil.pid_exists(own), dice.uniform(*_SECONDS)
            )
        finally:
            _limit(own, resource.RLIM_INFINITY)
        felt = site.failures(workload) > failures or not psutil.pid_exists(own)
        return Hit([workload], at) if felt else MISSED


def _limit(pid: int, size: int) -> None:
    with suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (size, resource.RLIM_INFINITY))


@dataclass(frozen=True)
class LosePackets(Fault):
    """Some of the packets between a query and Postgres are lost for a while, in both directions, by chance."""

    percent: int

    shown = "{percent} % of the packets lost"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        flight, at = site.in_flight(), time.monotonic()
        with BlackHole(site.proxies[workload].port, percent=self.percent) as hole:
            time.sleep(dice.uniform(*_SECONDS))
            dropped = hole.dropped
        return Hit([name for name in flight if name == workload], at) if dropped else MISSED
