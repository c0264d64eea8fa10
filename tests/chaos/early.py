"""
Strike transactions that began before their rows were there, while they wait for them.

Runs in: the laboratory. Invariant: tasks are held back while it strikes, and the driver under test has shown (by
:func:`chaos.seams.early_sign`) that the transaction had begun.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psycopg
from chaos.faults import AIM_SECONDS, MISSED, Fault, Hit, kill_named_in
from chaos.seams import early_sign
from chaos.site import Site
from chaos.workloads import WORKLOADS
from support.fixtures.driver import wait_until

_BEGIN_SECONDS = 5.0


@dataclass(frozen=True)
class StrikeEarly(Fault):
    """The line breaks, the session is ended, a task's worker is killed, or the rows are late."""

    what: Literal["line cut", "session terminated", "task's worker SIGKILL", "rows late"]

    @property
    def name(self) -> str:
        return f"early commit: {self.what}"

    def fits_workload(self, workload: str) -> bool:
        return workload == "append"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        folder, sign = site.directory / f"tasks-{workload}", early_sign(site.directory, workload)
        waiting = folder / "waiting"
        until = time.monotonic() + AIM_SECONDS
        while time.monotonic() < until:
            before = site.committed(workload)
            waiting.unlink(missing_ok=True)
            sign.unlink(missing_ok=True)
            (folder / "wait").touch()
            try:
                if wait_until(lambda: sign.exists() and waiting.exists(), _BEGIN_SECONDS):
                    at = time.monotonic()
                    if self._act(site, workload, waiting, sign):
                        return Hit([workload], at)
            finally:
                (folder / "wait").unlink()
            # Of a batch whose rows were late the next one begins late; the one after it may be early.
            wait_until(lambda: site.committed(workload) > before + 1, AIM_SECONDS)  # noqa: B023 (called here)
        return MISSED

    def _act(self, site: Site, workload: str, waiting: Path, sign: Path) -> bool:
        match self.what:
            case "line cut":
                site.proxies[workload].cut_all()
                return True
            case "session terminated":
                return _end_writers_of(site, WORKLOADS[workload].table)
            case "task's worker SIGKILL":
                return kill_named_in(waiting)
            case "rows late":
                return wait_until(lambda: not sign.exists(), AIM_SECONDS)


def _end_writers_of(site: Site, table: str) -> bool:
    with psycopg.connect(site.url, autocommit=True) as connection:
        ended = connection.execute(
            "SELECT count(pg_terminate_backend(pid)) FROM (SELECT DISTINCT pid FROM pg_locks JOIN pg_stat_activity "
            "USING (pid) WHERE relation = %s::regclass AND application_name LIKE 'pgonce%%') AS writers",
            [table],
        ).fetchone()
    return bool(ended and ended[0])
