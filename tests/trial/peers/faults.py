"""
The faults, the same for every way: each strikes all lanes of a site, and tells which it has hit.

Runs in: the trial. Invariant: a lane that a fault has missed is not counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress

import psutil
from support.fixtures.driver import wait_until
from support.fixtures.proxy import Hold
from trial.peers.site import Site
from trial.peers.ways import Lane

_AIM_SECONDS = 30.0
_MOST_SECONDS_APART = 15.0
_SUCCESSOR_SECONDS = 40.0
_ZOMBIE_SECONDS = 8.0

Strike = Callable[[Site, random.Random], set[str]]


def _all(site: Site) -> set[str]:
    return {lane.name for lane in site.lanes}


def _go_on(site: Site, seconds: float) -> None:
    """Let all lanes write for a while."""
    site.wait_for_rows(site.rows(), _AIM_SECONDS)
    time.sleep(seconds)


def _go_on_from(site: Site, seconds: float) -> set[str]:
    """
    Let all lanes write for a while after a copy was made, and say which have committed twice since.

    The batch that was under way at the copy may be its newest one still: the copy is not older then.
    """
    commits = dict.fromkeys(site.proxies, 0)
    seen = site.rows()

    def all_twice() -> bool:
        # Counting keeps Postgres from its work.
        time.sleep(0.2)
        rows = site.rows()
        for name in rows:
            commits[name] += rows[name] > seen[name]
        seen.update(rows)
        return min(commits.values()) > 1

    wait_until(all_twice, _AIM_SECONDS)
    time.sleep(seconds)
    return {name for name, count in commits.items() if count > 1}


def _telltale(lane: Lane) -> str:
    """Of a transaction with rows; Kafka Connect and Flink commit nothing else."""
    return lane.name if lane.way.family == "spark" else ""


def _arm(site: Site, moment: str) -> dict[str, Hold]:
    holds = {}
    for lane in site.lanes:
        proxy = site.proxies[lane.name]
        holds[lane.name] = getattr(proxy, f"hold_{moment}_commit")(touching=_telltale(lane))
    return holds


def _held(site: Site, holds: dict[str, Hold]) -> set[str]:
    """The lanes that are stopped at the moment; the first is waited for, and the others for a little."""
    wait_until(lambda: any(hold.reached.is_set() for hold in holds.values()), _AIM_SECONDS)
    wait_until(lambda: all(hold.reached.is_set() for hold in holds.values()), _MOST_SECONDS_APART)
    return {name for name, hold in holds.items() if hold.reached.is_set()}


def _disarm(site: Site) -> None:
    for proxy in site.proxies.values():
        proxy.disarm()


def kill_at_random(site: Site, dice: random.Random) -> set[str]:
    """SIGKILL of the writer at any moment."""
    time.sleep(dice.uniform(0, 3))
    site.writer.kill()
    site.writer.start()
    return _all(site)


def kill_after_commit(site: Site, dice: random.Random) -> set[str]:
    """SIGKILL of the writer when Postgres has committed rows and the writer has not noted it."""
    holds = _arm(site, "after")
    hit = _held(site, holds)
    site.writer.kill()
    _disarm(site)
    for hold in holds.values():
        hold.cut()
    site.writer.start()
    return hit


def lose_answer(site: Site, dice: random.Random) -> set[str]:
    """The connection breaks when Postgres has committed and before the writer hears of it."""
    holds = _arm(site, "after")
    hit = _held(site, holds)
    _disarm(site)
    for hold in holds.values():
        hold.cut()
    _go_on(site, 1)
    return hit


def kill_postgres(site: Site, dice: random.Random) -> set[str]:
    """SIGKILL of all processes of Postgres, which comes back."""
    time.sleep(dice.uniform(0, 3))
    site.postgres.crash(by_sigkill=True, down_seconds=dice.uniform(0, 2))
    return _all(site)


def freeze(site: Site, dice: random.Random) -> set[str]:
    """The writer stands still before its COMMIT, is replaced, and wakes beside its successor."""
    holds = _arm(site, "before")
    hit = _held(site, holds)
    frozen = site.writer.processes()
    for process in frozen:
        process.suspend()
    _disarm(site)
    before = site.rows()
    site.writer.start()
    site.wait_for_rows(before, _SUCCESSOR_SECONDS)
    for hold in holds.values():
        hold.release()
    for process in frozen:
        with suppress(psutil.NoSuchProcess):
            process.resume()
    time.sleep(_ZOMBIE_SECONDS)
    site.writer.kill_first()
    return hit


def lose_progress(site: Site, dice: random.Random) -> set[str]:
    """The checkpoint (the offsets of the group) is gone when the writer starts again."""
    _go_on(site, dice.uniform(0, 2))
    site.writer.kill()
    site.writer.lose_progress()
    site.writer.start()
    return _all(site)


def older_progress(site: Site, dice: random.Random) -> set[str]:
    """An older checkpoint (older offsets of the group) is there when the writer starts again."""
    site.writer.keep_progress()
    hit = _go_on_from(site, 2 + dice.uniform(0, 2))
    site.writer.kill()
    site.writer.restore_progress()
    site.writer.start()
    return hit


def restore_database(site: Site, dice: random.Random) -> set[str]:
    """The database is what it was some seconds before when the writer starts again."""
    kept = site.back_up()
    hit = _go_on_from(site, 2 + dice.uniform(0, 2))
    site.writer.kill()
    site.restore(kept)
    site.writer.start()
    return hit


FAULTS: dict[str, tuple[str, Strike]] = {
    "kill_at_random": ("writer killed at random", kill_at_random),
    "kill_after_commit": ("writer killed between its COMMIT and its own note of it", kill_after_commit),
    "lose_answer": ("the answer to COMMIT lost", lose_answer),
    "kill_postgres": ("Postgres killed", kill_postgres),
    "freeze": ("writer frozen before COMMIT, woken beside its successor", freeze),
    "lose_progress": ("checkpoint or offsets lost", lose_progress),
    "older_progress": ("older checkpoint or offsets", older_progress),
    "restore_database": ("database restored", restore_database),
}
"""Each with its words for the table."""
