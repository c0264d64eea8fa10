"""
The database goes back to what it was some seconds before, as from a backup.

Runs in: the laboratory, for queries in real time. (In micro-batches a query whose database went back is refused until a
person has recovered it.) Invariant: rows and positions go back together, by a copy of the whole data directory, and
the fault ends when all that was lost is there again.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from chaos.faults import Fault, Hit, left_by, wait_for_flight
from chaos.site import Setting, Site


@dataclass(frozen=True)
class Restore(Fault):
    """The data directory is exchanged for an older copy, under running queries or while no driver is there."""

    queries_run: bool

    @property
    def name(self) -> str:
        return f"database restored, {'under running queries' if self.queries_run else 'between two runs'}"

    def fits_setting(self, setting: Setting) -> bool:
        return setting.in_real_time

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        flight = wait_for_flight(site)
        data = site.postgres.data
        copy = data.with_name("copy")
        try:
            site.postgres.halt("fast")
            _copy(data, copy)
            site.postgres.start()
            self._wait_for(site, {one.name: site.planned(one.name) for one in site.workloads})
            time.sleep(dice.uniform(0, 6))
            lost, at = {one.name: site.planned(one.name) for one in site.workloads}, time.monotonic()
            refused = {name: _times_refused(site, name) for name in lost}
            if not self.queries_run:
                site.driver.sigkill()
            site.postgres.halt("immediate")
            shutil.rmtree(data)
            _copy(copy, data)
            site.postgres.start()
        finally:
            shutil.rmtree(copy, ignore_errors=True)
        if not self.queries_run:
            site.start_driver()
        self._wait_for(site, lost)
        noticed = [name for name, times in refused.items() if _times_refused(site, name) > times]
        return Hit(noticed if self.queries_run else flight, at)

    def _wait_for(self, site: Site, targets: dict[str, int]) -> None:
        """Wait until each query has stored these records, in this database."""

        def stored() -> bool:
            # To a run that began after the copy was made, the run in the copy is another one, which goes on.
            if left_by(site.subjects[-1]):
                site.revive()
            return all(site.committed(name) >= record for name, record in targets.items())

        site.wait_until(stored, f"records {targets} after a restore")


def _times_refused(site: Site, workload: str) -> int:
    entries = [entry for subject in site.subjects for entry in subject.entries if entry["workload"] == workload]
    return sum("POSITION_WENT_BACK" in entry["codes"] for entry in entries)


def _copy(folder: Path, to: Path) -> None:
    # The server's account stays the owner.
    subprocess.run(["cp", "-a", str(folder), str(to)], check=True)
