"""
What administrators do to a table, and to a server, under a running stream.

Runs in: the laboratory. Invariant: an act counts as a hit only where a commit was seen to wait for it; whatever was
done to a table is undone before the fault ends, so that the table can be judged.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psycopg
from chaos.faults import AIM_SECONDS, MISSED, Fault, Hit, wait_for_flight
from chaos.site import NotRecovered, Site
from chaos.workloads import IN_REAL_TIME, WORKLOADS
from support.fixtures.driver import wait_until

_APPENDED = ("inline", "staged", "received", "append", "deduplicated", *IN_REAL_TIME)
# But for the two tables whose sums an observer reads all the time, which not all types have.
_WITH_POSITIONS = (*_APPENDED, "upsert", "merged")
# After the act a query goes on, or fails and is started again: one of both is seen.
_REACTION_SECONDS = 60.0

_COMMITS_THAT_WAIT = """
SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'pgonce%%' AND %s::int[] && pg_blocking_pids(pid)
"""


class _Locked(Fault):
    """Something that locks a workload's table against its commits, and lets them go on."""

    workloads: tuple[str, ...] = tuple(WORKLOADS)

    def fits_workload(self, workload: str) -> bool:
        return workload in self.workloads


@dataclass(frozen=True)
class HoldLock(_Locked):
    """Another session holds a lock on the table, for less or more than ``lockTimeout``."""

    shown = "table locked for a while"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        with _transaction(site, f"LOCK TABLE {WORKLOADS[workload].table} IN ACCESS EXCLUSIVE MODE") as locking:
            if not _somebody_waits(site, locking):
                return MISSED
            at = time.monotonic()
            time.sleep(dice.uniform(0.3, 4))
        return Hit([workload], at)


@dataclass(frozen=True)
class Alter(_Locked):
    """
    A commit waits while the table becomes another, and goes on with it or is refused; then it becomes the old one.

    :param may_publish: whether a batch may be recorded in between.
    """

    what: str
    do: str
    undo: str
    workloads: tuple[str, ...]
    may_publish: bool = True

    shown = "table altered: {what}"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        table = WORKLOADS[workload].table
        with _transaction(site, self.do.format(t=table)) as altering:
            if not _somebody_waits(site, altering):
                altering.rollback()
                return MISSED
            at = time.monotonic()
            recorded, failures = site.recorded(workload), site.failures(workload)
        try:
            moved = wait_until(
                lambda: site.recorded(workload) > recorded or site.failures(workload) > failures, _REACTION_SECONDS
            )
        finally:
            published = self._undone(site, workload, table)
        wrong = [] if moved else [f"{workload} neither went on nor failed {_REACTION_SECONDS:.0f} s long"]
        if published > recorded and not self.may_publish:
            wrong.append(f"{workload} has published into a table that was {self.what}")
        return Hit([workload], at, tuple(wrong))

    def _undone(self, site: Site, workload: str, table: str) -> int:
        try:
            with _transaction(site, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE") as undoing:
                published = site.recorded(workload)
                undoing.execute(self.undo.format(t=table).encode())
        except psycopg.Error as error:
            # Values that have arrived as others fail here, by the table's key.
            raise NotRecovered(f"{table} could not be made what it was: {error}") from error
        return published


_SAME_WIDTH = {
    "double precision": ("double precision", "position"),
    "money": ("money", "position::numeric"),
    "timestamp": ("timestamp USING timestamp '2000-01-01' + position * interval '1 s'",
                  "extract(epoch FROM position - timestamp '2000-01-01')"),
}  # fmt: skip

# To other types of the same width, which would take the old one's bytes for values of theirs; and what else is altered.
ALTERATIONS = (
    *(
        Alter(
            f"bigint to {name}",
            f"ALTER TABLE {{t}} ALTER position TYPE {to}",
            f"ALTER TABLE {{t}} ALTER position TYPE bigint USING ({back})::bigint",
            _WITH_POSITIONS,
        )
        for name, (to, back) in _SAME_WIDTH.items()
    ),
    Alter(
        "a column added, and dropped",
        "ALTER TABLE {t} ADD COLUMN note text",
        "ALTER TABLE {t} DROP COLUMN note",
        tuple(WORKLOADS),
    ),
    Alter(
        "unlogged", "ALTER TABLE {t} SET UNLOGGED", "ALTER TABLE {t} SET LOGGED", tuple(WORKLOADS), may_publish=False
    ),
    Alter(
        "renamed, another in its place",
        "ALTER TABLE {t} RENAME TO {t}_old; CREATE TABLE {t} (LIKE {t}_old INCLUDING DEFAULTS)",
        "INSERT INTO {t}_old SELECT * FROM {t}; DROP TABLE {t}; ALTER TABLE {t}_old RENAME TO {t}",
        _APPENDED,
    ),
)


@dataclass(frozen=True)
class Maintain(_Locked):
    """``VACUUM FULL`` or ``REINDEX``, for which a commit waits."""

    command: str

    shown = "table maintained: {command}"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        table = WORKLOADS[workload].table
        failed: list[Exception] = []

        def maintain(connection: psycopg.Connection) -> None:
            try:
                connection.execute(f"{self.command} {table}".encode())
            except psycopg.Error as error:
                failed.append(error)

        with psycopg.connect(site.url, autocommit=True) as maintaining:
            with _transaction(site, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE") as locking:
                thread = threading.Thread(target=maintain, args=(maintaining,))
                thread.start()
                # First in the queue, and commits behind it.
                queued = wait_until(lambda: _waits(site, maintaining, locking), AIM_SECONDS)
                met = queued and _somebody_waits(site, locking, maintaining)
                at = time.monotonic()
            thread.join()
        return Hit([workload], at) if met and not failed else MISSED


@dataclass(frozen=True)
class EndSessions(Fault):
    """All sessions of the driver's are ended at once, by order."""

    shown = "all sessions terminated"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hit = Hit(wait_for_flight(site), time.monotonic())
        with psycopg.connect(site.url, autocommit=True) as connection:
            ended = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name LIKE 'pgonce%'"
            ).fetchone()
        return hit if ended and ended[0] else MISSED


@dataclass(frozen=True)
class Reload(Fault):
    """The server reads its configuration again, while batches run."""

    shown = "server's configuration reloaded"

    def strike(self, site: Site, workload: str, dice: random.Random) -> Hit:
        hit = Hit(wait_for_flight(site), time.monotonic())
        site.postgres.configure(
            work_mem=f"{dice.randrange(1, 64)}MB", deadlock_timeout=f"{dice.randrange(100, 2000)}ms"
        )
        return hit


@contextmanager
def _transaction(site: Site, *statements: str) -> Iterator[psycopg.Connection]:
    """A transaction of an administrator's that begins with these, and is committed at its end."""
    with psycopg.connect(site.url) as connection:
        for statement in statements:
            connection.execute(statement.encode())
        yield connection


def _somebody_waits(site: Site, *blocking: psycopg.Connection) -> bool:
    pids = [connection.info.backend_pid for connection in blocking]
    return _seen(site, lambda observer: observer.execute(_COMMITS_THAT_WAIT, [pids]).fetchone() != (0,))


def _waits(site: Site, waiting: psycopg.Connection, blocking: psycopg.Connection) -> bool:
    pids = [blocking.info.backend_pid, waiting.info.backend_pid]
    with psycopg.connect(site.url, autocommit=True) as observer:
        return observer.execute("SELECT %s = ANY(pg_blocking_pids(%s))", pids).fetchone() == (True,)


def _seen(site: Site, condition: Callable[[psycopg.Connection], bool]) -> bool:
    with psycopg.connect(site.url, autocommit=True) as observer:
        return wait_until(lambda: condition(observer), AIM_SECONDS)
