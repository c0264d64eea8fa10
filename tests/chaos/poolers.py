"""
Faults of a PgBouncer between a query and Postgres.

Runs in: the laboratory. Invariant: it strikes queries whose way to Postgres goes through a PgBouncer, and no others.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

from chaos.faults import MISSED, Fault, Hit, Moment, Wire, held
from chaos.site import Setting, Site
from support.fixtures.proxy import Proxy


@dataclass(frozen=True)
class KillPooler(Fault):
    """SIGKILL of PgBouncer when a commit of its client is at a moment; it comes back."""

    moment: Moment

    shown = "PgBouncer SIGKILL {moment}"

    def fits_query(self, setting: Setting, workload: str) -> bool:
        return workload in setting.pooled

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, self.moment)
        if hold is None:
            return MISSED
        at = time.monotonic()
        pooler = site.poolers[workload]
        pooler.kill()
        hold.release()
        time.sleep(dice.uniform(0, 2))
        pooler.start()
        return Hit([workload], at)


@dataclass(frozen=True)
class WireBehindPooler(Wire):
    """The line between PgBouncer and Postgres fails at a moment: the client hears of it by PgBouncer only."""

    shown = "line behind PgBouncer: {action} {moment}"

    def fits_query(self, setting: Setting, workload: str) -> bool:
        return workload in setting.pooled

    def line(self, site: Site, workload: str) -> Proxy:
        return site.behind[workload]
