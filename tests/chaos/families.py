"""
The faults that the laboratory knows, and how often it draws each.

Pure. Invariant: every fault stands in a family, and every family comes up in a plan of 32 faults. A fault tells itself
what it fits: in real time many fit nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from chaos.administrators import ALTERATIONS, EndSessions, HoldLock, Maintain, Reload
from chaos.faults import (
    CrashServer,
    Fault,
    Freeze,
    KillBackend,
    KillBroker,
    KillDriver,
    KillExecutor,
    KillTaskWorker,
    KillWorker,
    SecondDriver,
    Wire,
)
from chaos.poolers import KillPooler, WireBehindPooler
from chaos.receivers import FillDisk, FreezeReceiver, KillReceiver
from chaos.resources import LosePackets, ServersDiskFull
from chaos.restores import Restore
from chaos.vanishing import Vanish

# Tools that a machine may lack.
POOLER = "PgBouncer"
FIREWALL = "nftables, as root"
DISK = "a disk to mount, as root"

_AT_COMMIT = ("in_copy", "before_commit", "after_commit")


@dataclass(frozen=True)
class Family:
    """Faults of one kind, how many of twenty or so are of it, and the tool without which there are none."""

    faults: tuple[Fault, ...]
    share: int
    needs: str | None = None


# Strike one query each, and so all queries of a site at the same time. What stands in a family twice comes up twice as
# often. The shares are such that 24 faults in micro-batches have some of each family.
AT_ONE_QUERY: tuple[Family, ...] = (
    Family(
        tuple(
            Wire(moment, action)
            for moment in ("connect", *_AT_COMMIT)
            for action in ("cut", "cut", "delay", "black_hole")
        ),
        share=6,
    ),
    Family(
        (
            *(Vanish(moment, lost) for moment in ("connect", *_AT_COMMIT) for lost in ("requests", "answers", "both")),
            *(LosePackets(percent) for percent in (5, 20, 50)),
        ),
        share=3,
        needs=FIREWALL,
    ),
    Family((*(KillWorker(moment) for moment in _AT_COMMIT for _ in range(3)), *(KillTaskWorker(),) * 4), share=4),
    Family(
        (
            *(KillReceiver(moment) for moment in _AT_COMMIT for _ in range(2)),
            *(FreezeReceiver(moment, soon=True) for moment in _AT_COMMIT),
            FreezeReceiver("before_commit", soon=False),
            FillDisk(),
        ),
        share=2,
    ),
    Family((HoldLock(), Maintain("VACUUM FULL"), Maintain("REINDEX TABLE"), *ALTERATIONS), share=4),
    Family(
        (
            *(KillPooler(moment) for moment in _AT_COMMIT),
            *(WireBehindPooler(moment, "cut") for moment in ("connect", *_AT_COMMIT)),
            *(WireBehindPooler(moment, "delay") for moment in ("before_commit", "after_commit")),
        ),
        share=3,
        needs=POOLER,
    ),
)

# Strike everything at a site, with how often they come up.
AT_ALL: tuple[tuple[Fault, int], ...] = (
    (KillDriver(), 6),
    *((KillDriver(moment), 2) for moment in _AT_COMMIT),
    *((KillDriver(moment, workers_live=True), 1) for moment in _AT_COMMIT),
    (KillBackend(by_sigkill=False), 4),
    (KillBackend(by_sigkill=True), 3),
    (EndSessions(), 3),
    (CrashServer(by_sigkill=False), 3),
    (CrashServer(by_sigkill=True), 3),
    (ServersDiskFull(), 3),
    (Reload(), 2),
    (KillBroker(), 8),
    (KillExecutor(), 12),
    *((Freeze(moment), 1) for moment in _AT_COMMIT),
    (SecondDriver(), 2),
    (Restore(queries_run=True), 3),
    (Restore(queries_run=False), 2),
)
