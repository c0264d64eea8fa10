"""
Faults of what queries take for granted: room on the server's disk, and packets that arrive.

Runs in: the laboratory. Invariant: a fault that nobody has felt has missed. (Where memory runs out, the kernel kills a
process, and so do other faults.)
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from black_hole import BlackHole
from chaos.faults import MISSED, Fault, Hit, wait_for_flight
from chaos.site import Setting, Site
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
