"""
Postgres vanishes from the network for a while, without a reset or an answer.

Runs in: the laboratory, as root, with nftables. Invariant: nothing is cut and nothing acknowledged, unlike where a
proxy falls silent; a hole counts as a hit where packets of the query were lost in it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from black_hole import BlackHole, Lost
from chaos.faults import MISSED, Fault, Hit, Moment, comes, held
from chaos.site import Site
from chaos.workloads import WORKLOADS

# Longer than the laboratory's queries wait for an acknowledgement (``site.LINES_DIE_SOON``).
_SECONDS = (4.0, 9.0)


@dataclass(frozen=True)
class Vanish(Fault):
    """
    At a moment of a commit all packets of its query's lines are lost, in one direction or both, and later no more.

    What is lost before COMMIT in both directions is a COMMIT; what is lost after it, its answer.
    """

    moment: Moment
    lost: Lost

    shown = "host vanished {moment}, {lost} lost"

    def fits_workload(self, workload: str) -> bool:
        return comes(self.moment, in_real_time=WORKLOADS[workload].in_real_time)

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, self.moment)
        if hold is None:
            return MISSED
        at = time.monotonic()
        try:
            with BlackHole(site.proxies[workload].port, self.lost) as hole:
                hold.release()
                time.sleep(dice.uniform(*_SECONDS))
                dropped = hole.dropped
        finally:
            hold.release()
        return Hit([workload], at) if dropped else MISSED
