"""
Which faults strike where, and in which order? The same seed gives the same plan.

Pure. Invariant: a plan has exactly as many faults as were asked for.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

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
    Wire,
)
from chaos.site import CAN_WAIT, Setting
from chaos.workloads import WORKLOADS

# Strike one query each, and so all queries of a site at the same time. What stands here twice comes up twice as often.
AT_ONE_QUERY: tuple[Fault, ...] = (
    *(
        Wire(moment, action)
        for moment in ("connect", "in_copy", "before_commit", "after_commit")
        for action in ("cut", "cut", "delay", "black_hole")
    ),
    *(KillWorker(moment) for moment in ("in_copy", "before_commit", "after_commit") for _ in range(3)),
    *(KillTaskWorker(),) * 4,
)

# Strike everything at a site, with how often they come up.
AT_ALL: tuple[tuple[Fault, int], ...] = (
    (KillDriver(), 6),
    *((KillDriver(moment), 2) for moment in ("in_copy", "before_commit", "after_commit")),
    *((KillDriver(moment, workers_live=True), 1) for moment in ("in_copy", "before_commit", "after_commit")),
    (KillBackend(by_sigkill=False), 4),
    (KillBackend(by_sigkill=True), 3),
    (CrashServer(by_sigkill=False), 3),
    (CrashServer(by_sigkill=True), 3),
    (KillBroker(), 8),
    (KillExecutor(), 12),
    *((Freeze(moment), 1) for moment in ("in_copy", "before_commit", "after_commit")),
)

_ROUND_FAULTS = 60
_QUERIES = 4
_WAVES_PER_BLOW = 3


@dataclass(frozen=True)
class Aimed:
    """A fault and the workload at which it is aimed; those that strike everything name the first."""

    fault: Fault
    workload: str


@dataclass(frozen=True)
class Round:
    """One site, and waves of faults; those of a wave strike at the same time."""

    number: int
    seed: int
    setting: Setting
    waves: tuple[tuple[Aimed, ...], ...]


def plan(seed: int, faults: int) -> list[Round]:
    """So many faults over rounds of all sources, with and without a cluster, over all workloads."""
    dice = random.Random(seed)
    deck = _Deck(dice)
    sources: list[str] = []
    rounds: list[Round] = []
    round_faults = min(_ROUND_FAULTS, max(8, -(-faults // 3)))
    left = faults
    while left:
        if not sources:
            sources = ["files", "rate", "kafka"]
            dice.shuffle(sources)
        size = min(left, round_faults)
        rounds.append(_round(dice, deck, len(rounds), sources.pop(), size))
        left -= size
    return rounds


def _round(dice: random.Random, deck: _Deck, number: int, source: str, faults: int) -> Round:
    setting = Setting(source, cluster=number % 4 == 2, workloads=_workloads(dice, number))
    waves: list[tuple[Aimed, ...]] = []
    left = faults
    while left:
        if len(waves) % (_WAVES_PER_BLOW + 1) == 0:
            wave = (Aimed(deck.draw(setting), setting.workloads[0]),)
        else:
            wave = tuple(Aimed(_at(dice, workload), workload) for workload in setting.workloads)[:left]
        waves.append(wave)
        left -= len(wave)
    return Round(number, dice.randrange(2**32), setting, tuple(waves))


def _workloads(dice: random.Random, number: int) -> tuple[str, ...]:
    """One that is stateful every other round, one of the Data Source's always, and others."""
    by_kind: dict[bool, list[str]] = {True: [], False: []}
    for name, workload in WORKLOADS.items():
        by_kind[workload.stateful].append(name)
    chosen = dice.sample(by_kind[True], 1) if number % 2 else []
    chosen.append(dice.choice(CAN_WAIT))
    rest = [name for name in by_kind[False] if name not in chosen]
    return tuple(chosen + dice.sample(rest, _QUERIES - len(chosen)))


def _at(dice: random.Random, workload: str) -> Fault:
    return dice.choice([fault for fault in AT_ONE_QUERY if fault.fits_workload(workload)])


class _Deck:
    """Faults that strike everything, drawn like cards: in a long plan each comes up as often as it should."""

    def __init__(self, dice: random.Random) -> None:
        self._dice = dice
        self._cards: list[Fault] = []

    def draw(self, setting: Setting) -> Fault:
        """The first card that fits; the others wait for a setting of theirs."""
        fitting = [card for card in self._cards if card.fits_setting(setting)]
        if not fitting:
            new = [fault for fault, times in AT_ALL for _ in range(times)]
            self._dice.shuffle(new)
            self._cards += new
            return self.draw(setting)
        self._cards.remove(fitting[0])
        return fitting[0]
