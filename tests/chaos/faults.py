"""
What can go wrong, as code: each fault strikes a site and tells which queries it really hit.

Runs in: the laboratory. Invariant: a fault that cannot show that it hit what it aimed at has missed; it never
counts as survived.
"""

from __future__ import annotations

import os
import random
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import psutil
import psycopg
from chaos.site import CAN_WAIT, Setting, Site, command_of, process_of_connection
from chaos.subject import Subject
from chaos.workloads import WORKLOADS
from support.fixtures.driver import Driver, wait_until
from support.fixtures.proxy import Hold, Proxy

Moment = Literal["connect", "in_copy", "before_commit", "after_commit"]

AIM_SECONDS = 40.0
_MOST_SECONDS_APART = 4.0


class Hit(NamedTuple):
    """
    Which workloads a fault has hit, none where it missed, and when it began, by the monotonic clock.

    ``wrong`` says what it has seen meanwhile that must not be, and that a table does not show afterwards.
    """

    workloads: list[str]
    at: float = 0.0
    wrong: tuple[str, ...] = ()


MISSED = Hit([])


class Fault(ABC):
    """One thing that goes wrong; ``shown`` is its name, with its fields."""

    shown: ClassVar[str]

    @property
    def name(self) -> str:
        """As it stands in the report."""
        return self.shown.format(**vars(self))

    def fits_workload(self, workload: str) -> bool:
        """Whether it can strike this workload."""
        return True

    def fits_setting(self, setting: Setting) -> bool:
        """Whether it can strike such a site."""
        return True

    def fits_query(self, setting: Setting, workload: str) -> bool:
        """Whether it can strike this workload at such a site."""
        return self.fits_setting(setting) and self.fits_workload(workload)

    @abstractmethod
    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        """Do it, and tell what was hit."""


def comes(moment: Moment | None, *, in_real_time: bool) -> bool:
    """Whether a query has such a moment: in real time there is no COPY, and each flush is a commit."""
    return moment != "in_copy" or not in_real_time


def _arm(site: Site, workload: str, moment: Moment, proxy: Proxy | None = None) -> Hold:
    """Have the workload's line (or the one that ``proxy`` is) stop at a moment of a commit."""
    proxy = proxy or site.proxies[workload]
    telltale = WORKLOADS[workload].telltale
    match moment:
        case "connect":
            hold = proxy.hold_at_connect()
            # Connections are kept in a pool; without this there may be no new one for long.
            proxy.cut_all()
            return hold
        case "in_copy":
            return proxy.hold_in_copy(after_bytes=20)
        case "before_commit":
            return proxy.hold_before_commit(touching=telltale)
        case "after_commit":
            return proxy.hold_after_commit(touching=telltale)


def held(site: Site, workload: str, moment: Moment, proxy: Proxy | None = None) -> Hold | None:
    """The workload's line, stopped at a moment of a commit; None where it did not come there."""
    hold = _arm(site, workload, moment, proxy)
    if hold.reached.wait(AIM_SECONDS):
        return hold
    (proxy or site.proxies[workload]).disarm()
    # It may have struck between the wait's end and the disarming.
    return hold if hold.reached.wait(0.2) else None


@dataclass(frozen=True)
class Wire(Fault):
    """The line to Postgres fails at a moment: it breaks, stands still for a while, or swallows everything first."""

    moment: Moment
    action: Literal["cut", "delay", "black_hole"]

    shown = "line: {action} {moment}"

    def fits_workload(self, workload: str) -> bool:
        return comes(self.moment, in_real_time=WORKLOADS[workload].in_real_time)

    def line(self, site: Site, workload: str) -> Proxy:
        """The line that fails."""
        return site.proxies[workload]

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        line = self.line(site, workload)
        hold = held(site, workload, self.moment, line)
        if hold is None:
            return MISSED
        at = time.monotonic()
        if self.action != "cut":
            time.sleep(dice.uniform(0.2, 1.5))
        if self.action == "delay":
            hold.release()
        else:
            hold.cut()
        return Hit([workload], at)


@dataclass(frozen=True)
class KillWorker(Fault):
    """SIGKILL of the Python worker that speaks to Postgres at a moment: the commit worker, or a task that stages."""

    moment: Moment

    shown = "worker SIGKILL {moment}"

    def fits_workload(self, workload: str) -> bool:
        return WORKLOADS[workload].commits_in == "worker"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hold = held(site, workload, self.moment)
        if hold is None:
            return MISSED
        at = time.monotonic()
        worker = process_of_connection(hold.client)
        if worker:
            worker.kill()
        hold.cut()
        return Hit([workload], at) if worker else MISSED


def kill_named_in(waiting: Path) -> bool:
    """
    Kill the worker whose process id a waiting task has written into this file.

    False if it is written at this moment, or if another fault has ended that worker; the task then waits in another.
    """
    with suppress(ProcessLookupError, ValueError):
        os.kill(int(waiting.read_text()), signal.SIGKILL)
        return True
    return False


@dataclass(frozen=True)
class KillTaskWorker(Fault):
    """SIGKILL of a Python worker in the middle of a task, with rows in its hands."""

    shown = "task's worker SIGKILL"

    def fits_workload(self, workload: str) -> bool:
        return workload in CAN_WAIT

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        folder = site.directory / f"tasks-{workload}"
        (folder / "waiting").unlink(missing_ok=True)
        (folder / "wait").touch()
        try:
            return Hit([workload], time.monotonic()) if self._kill_waiting(folder / "waiting") else MISSED
        finally:
            (folder / "wait").unlink()

    def _kill_waiting(self, waiting: Path) -> bool:
        until = time.monotonic() + AIM_SECONDS
        while time.monotonic() < until:
            with suppress(FileNotFoundError):
                if kill_named_in(waiting):
                    return True
            time.sleep(0.01)
        return False


@dataclass(frozen=True)
class KillDriver(Fault):
    """SIGKILL of the driver with its JVM: anywhere, or when its queries are at a moment of their commits."""

    moment: Moment | None = None
    workers_live: bool = False

    @property
    def name(self) -> str:
        who = "driver SIGKILL, workers live on" if self.workers_live else "driver SIGKILL"
        return f"{who} {self.moment or 'anywhere'}"

    def fits_setting(self, setting: Setting) -> bool:
        if not setting.in_real_time:
            return True
        # Its workers are executors.
        return comes(self.moment, in_real_time=True) and (setting.cluster or not self.workers_live)

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        holds = _arm_all(site, self.moment)
        if self.moment:
            _wait_for_most(holds.values())
        else:
            time.sleep(dice.uniform(0, 1.5))
        at, dead = time.monotonic(), site.driver
        if self.workers_live:
            _kill_without_workers(dead, site.setting)
        else:
            dead.sigkill()
        hit = [name for name, hold in holds.items() if hold.reached.is_set()] if holds else site.in_flight()
        for name in holds:
            site.proxies[name].disarm()
        site.start_driver()
        # A worker that has outlived its driver may finish its commit now, while the successor begins.
        for hold in holds.values():
            hold.release() if self.workers_live else hold.cut()
        return Hit(hit, at)


def _kill_without_workers(driver: Driver, setting: Setting) -> None:
    if not setting.in_real_time:
        os.killpg(driver.pid, signal.SIGKILL)
        return
    for process in driver.processes():
        if not _is_executor(process):
            with suppress(psutil.NoSuchProcess):
                process.kill()


def _is_executor(process: psutil.Process) -> bool:
    return "CoarseGrainedExecutorBackend" in command_of(process)


@dataclass(frozen=True)
class KillExecutor(Fault):
    """SIGKILL of one executor's JVM while batches run."""

    shown = "executor SIGKILL"

    def fits_setting(self, setting: Setting) -> bool:
        return setting.cluster

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        executors = [process for process in site.driver.processes() if _is_executor(process)]
        hit = Hit(wait_for_flight(site), time.monotonic())
        if not executors:
            return MISSED
        dice.choice(sorted(executors, key=lambda process: process.pid)).kill()
        return hit


@dataclass(frozen=True)
class KillBackend(Fault):
    """The end of one Postgres session of ours inside a transaction: by order, or by SIGKILL (all sessions then end)."""

    by_sigkill: bool

    @property
    def name(self) -> str:
        return "backend SIGKILL" if self.by_sigkill else "backend terminated"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        until = time.monotonic() + AIM_SECONDS
        with psycopg.connect(site.url, autocommit=True) as connection:
            while time.monotonic() < until:
                found = connection.execute(
                    "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'pgonce%' "
                    "AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"
                ).fetchone()
                # First, because the server does not answer for a while if all its sessions end.
                flight = site.in_flight() if found else []
                if found and self._end(connection, found[0]):
                    return Hit(flight, time.monotonic())
                time.sleep(0.003)
        return MISSED

    def _end(self, connection: psycopg.Connection, pid: int) -> bool:
        if not self.by_sigkill:
            done = connection.execute("SELECT pg_terminate_backend(%s)", [pid]).fetchone()
            return bool(done and done[0])
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
        return False


@dataclass(frozen=True)
class CrashServer(Fault):
    """The whole server goes down while batches run, and comes back."""

    by_sigkill: bool

    @property
    def name(self) -> str:
        return "server SIGKILL" if self.by_sigkill else "server immediate stop"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hit = Hit(wait_for_flight(site), time.monotonic())
        site.postgres.crash(by_sigkill=self.by_sigkill, down_seconds=dice.uniform(0, 2))
        return hit


@dataclass(frozen=True)
class KillBroker(Fault):
    """SIGKILL of the Kafka broker while batches run; it comes back."""

    shown = "broker SIGKILL"

    def fits_setting(self, setting: Setting) -> bool:
        return setting.source == "kafka"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        assert site.broker
        hit = Hit(wait_for_flight(site), time.monotonic())
        site.broker.kill()
        time.sleep(dice.uniform(0, 2))
        site.broker.start()
        return hit


@dataclass(frozen=True)
class Freeze(Fault):
    """SIGSTOP of the driver and all its processes, a successor on the same checkpoints, SIGCONT: a zombie."""

    moment: Moment

    shown = "driver frozen {moment}, woken beside its successor"

    def fits_setting(self, setting: Setting) -> bool:
        return not setting.cluster and comes(self.moment, in_real_time=setting.in_real_time)

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        holds = _arm_all(site, self.moment)
        _wait_for_most(holds.values())
        at, zombie, old = time.monotonic(), site.driver, site.subjects[-1]
        frozen = zombie.processes()
        for process in frozen:
            process.suspend()
        hit = [name for name, hold in holds.items() if hold.reached.is_set()]
        for name in holds:
            site.proxies[name].disarm()
        before = {workload.name: site.planned(workload.name) for workload in site.workloads}
        site.start_driver()
        try:
            site.wait_until(lambda: all(site.committed(name) > last for name, last in before.items()), "the successor")
        finally:
            for hold in holds.values():
                hold.release()
            for process in frozen:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
        wait_until(lambda: left_by(old) >= set(before), 60)
        stopped = left_by(old)
        zombie.sigkill()
        # Spark lets the zombie win a batch now and then, and tells the successor to leave.
        site.revive()
        return Hit([name for name in hit if name in stopped], at)


@dataclass(frozen=True)
class SecondDriver(Fault):
    """Another driver starts on the same checkpoints while the first one runs: the newest start of a query wins."""

    shown = "second driver started"

    def fits_setting(self, setting: Setting) -> bool:
        # In micro-batches Spark may stop both (tests/chaos/test_two_drivers.py).
        return setting.in_real_time and not setting.cluster

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        flight, first, old = wait_for_flight(site), site.driver, site.subjects[-1]
        at = time.monotonic()
        site.start_driver()
        wait_until(lambda: left_by(old) >= set(flight), AIM_SECONDS)
        left = left_by(old)
        first.sigkill()
        site.revive()
        return Hit([name for name in flight if name in left], at)


def left_by(subject: Subject) -> set[str]:
    """The workloads that a driver has left to another one."""
    return {entry["workload"] for entry in subject.entries if entry["event"] == "left"}


def _arm_all(site: Site, moment: Moment | None) -> dict[str, Hold]:
    return {w.name: _arm(site, w.name, moment) for w in site.workloads} if moment else {}


def _wait_for_most(holds: Iterable[Hold]) -> None:
    """Wait for the first, and then a little for the others."""
    holds = list(holds)
    wait_until(lambda: any(hold.reached.is_set() for hold in holds), AIM_SECONDS)
    wait_until(lambda: all(hold.reached.is_set() for hold in holds), _MOST_SECONDS_APART)


def wait_for_flight(site: Site) -> list[str]:
    """The workloads that are in the middle of a batch, as soon as there are some."""
    until = time.monotonic() + AIM_SECONDS
    while not (found := site.in_flight()) and time.monotonic() < until:
        time.sleep(0.002)
    return found
