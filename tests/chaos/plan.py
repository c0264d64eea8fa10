"""
A plan of which faults strike where, and in which order. The same seed gives the same plan.

Pure. Invariant: a plan has exactly as many faults as were asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from chaos.families import AT_ALL, AT_ONE_QUERY, DISK, POOLER, Family
from chaos.faults import Fault, KillBroker, KillExecutor
from chaos.site import Setting
from chaos.workloads import IN_MICRO_BATCHES, IN_REAL_TIME, WORKLOADS

_ROUND_FAULTS = 60
_QUERIES = 4
# So many of them behind PgBouncer.
_POOLED = 2
# Waves of faults at one query each, to one that strikes all queries; in real time, where queries are two.
_WAVES_PER_BLOW, _OF_TWO_QUERIES = 3, 1

# The rounds that may be asked for alone.
Only = Literal["micro-batches", "real-time"]
_REAL_TIME = "real-time"
_SOURCES: dict[Only | None, tuple[str, ...]] = {
    None: ("files", "rate", "kafka", _REAL_TIME),
    "micro-batches": ("files", "rate", "kafka"),
    "real-time": (_REAL_TIME,),
}


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


def plan(seed: int, faults: int, missing: Iterable[str] = (), only: Only | None = None) -> list[Round]:
    """
    So many faults over rounds of all sources, with and without a cluster, over all workloads; one in four in real time.

    :param missing: tools that this machine lacks; what needs them is left out.
    """
    dice = random.Random(seed)
    # One for each kind of rounds: what fits only one of them must not wait in the other one's decks.
    in_micro_batches = _Dealer(dice, frozenset(missing), IN_MICRO_BATCHES)
    in_real_time = _Dealer(dice, frozenset(missing), IN_REAL_TIME)
    sources: list[str] = []
    rounds: list[Round] = []
    round_faults = min(_ROUND_FAULTS, max(8, -(-faults // len(_SOURCES[None]))))
    left = faults
    while left:
        if not sources:
            sources = list(_SOURCES[only])
            dice.shuffle(sources)
        source, size = sources.pop(), min(left, round_faults)
        dealer = in_real_time if source == _REAL_TIME else in_micro_batches
        setting = dealer.real_time_setting() if source == _REAL_TIME else dealer.setting(source)
        rounds.append(_round(dice, dealer, len(rounds), setting, size))
        left -= size
    return rounds


def _round(dice: random.Random, dealer: _Dealer, number: int, setting: Setting, faults: int) -> Round:
    workloads = setting.workloads
    waves_per_blow = _OF_TWO_QUERIES if setting.in_real_time else _WAVES_PER_BLOW
    waves: list[tuple[Aimed, ...]] = []
    left = faults
    while left:
        if len(waves) % (waves_per_blow + 1) == 0:
            wave = (Aimed(dealer.at_all(setting), workloads[0]),)
        else:
            # In any order, for the last wave of a round may be a part of one.
            struck = dice.sample(workloads, len(workloads))[:left]
            wave = tuple(Aimed(dealer.at_one_query(setting, workload), workload) for workload in struck)
        waves.append(wave)
        left -= len(wave)
    return Round(number, dice.randrange(2**32), setting, tuple(waves))


def plan_of(text: str, seed: int, faults: int, missing: Iterable[str] = (), only: Only | None = None) -> list[Round]:
    """
    One round of the faults whose names have this text, at queries that they fit: in micro-batches, if they fit those.

    :raises ValueError: there are none.
    """
    dice = random.Random(seed)
    without = frozenset(missing)
    at_one = [fault for family in AT_ONE_QUERY if family.needs not in without for fault in family.faults]
    at_one = [fault for fault in at_one if text in fault.name]
    at_all = [fault for fault, _ in AT_ALL if text in fault.name]
    cluster = any(isinstance(fault, KillExecutor) for fault in at_all)
    source = "kafka" if any(isinstance(fault, KillBroker) for fault in at_all) else dice.choice(("files", "rate"))
    possible = [name for name in IN_MICRO_BATCHES if _reads(name, source)]
    fitting = [name for name in possible if any(fault.fits_workload(name) for fault in at_one)] or possible
    workloads = tuple(dice.sample(fitting, min(_QUERIES, len(fitting))))
    settings: dict[Only, Setting] = {
        "micro-batches": Setting(
            source, cluster, workloads, () if POOLER in without else workloads[::2], DISK not in without
        ),
        "real-time": Setting("kafka", cluster, IN_REAL_TIME),
    }
    for setting in settings.values() if only is None else (settings[only],):
        by_workload = {name: [one for one in at_one if one.fits_query(setting, name)] for name in setting.workloads}
        blow = [fault for fault in at_all if fault.fits_setting(setting)]
        waves: list[tuple[Aimed, ...]] = []
        while (left := faults - sum(map(len, waves))) > 0 and (blow or any(by_workload.values())):
            wave = tuple(Aimed(dice.choice(found), name) for name, found in by_workload.items() if found)
            is_blow = blow and (not wave or dice.random() < len(at_all) / (len(at_all) + len(at_one)))
            waves.append((Aimed(dice.choice(blow), setting.workloads[0]),) if is_blow else wave[:left])
        if waves:
            return [Round(0, dice.randrange(2**32), setting, tuple(waves))]
    raise ValueError(f"no fault's name has {text!r} in it, or none fits; or this machine lacks what it needs")


def _reads(workload: str, source: str) -> bool:
    """Whether the source has what the workload reads."""
    return source == "kafka" or not WORKLOADS[workload].needs_kafka


def _by_data_source(workload: str) -> bool:
    """Whether tasks hand its rows over, so that faults can strike them."""
    return WORKLOADS[workload].commits_in != "driver"


T = TypeVar("T")


class _Deck(Generic[T]):
    """Drawn like cards: in a long plan each comes up as often as it should, and soon."""

    def __init__(self, dice: random.Random, cards: Iterable[T]) -> None:
        self._dice = dice
        self._all = list(cards)
        self._left: list[T] = []

    def draw(self, fits: Callable[[T], bool]) -> T:
        """The first card that fits; the others wait for their turn."""
        fitting = [card for card in self._left if fits(card)]
        if not fitting:
            new = self._dice.sample(self._all, len(self._all))
            self._left += new
            fitting = [card for card in new if fits(card)]
        self._left.remove(fitting[0])
        return fitting[0]


class _Dealer:
    """All decks of a plan."""

    def __init__(self, dice: random.Random, missing: frozenset[str], workloads: Sequence[str]) -> None:
        self.missing = missing
        self._names = workloads
        families = [family for family in AT_ONE_QUERY if family.needs not in missing]
        self._dealt = dict.fromkeys(families, 0)
        self._of_family = {family: _Deck(dice, family.faults) for family in families}
        self._dice = dice
        self._blows = _Deck(dice, [fault for fault, times in AT_ALL for _ in range(times)])
        self._pooled = _Deck(dice, workloads)
        self._workloads = {
            stateful: _Deck(dice, [name for name in workloads if WORKLOADS[name].stateful == stateful])
            for stateful in (True, False)
        }
        self._for_kafka = [name for name in workloads if WORKLOADS[name].needs_kafka]
        self._clusters = _Deck(dice, (False, True))
        self._rounds = 0

    def setting(self, source: str) -> Setting:
        """That of the next round in micro-batches."""
        workloads = self._queries(source, stateful=self._rounds % 2)
        small_disk = DISK not in self.missing
        setting = Setting(source, self._rounds % 4 == 2, workloads, self._behind_poolers(workloads), small_disk)
        self._rounds += 1
        return setting

    def real_time_setting(self) -> Setting:
        """That of the next round in real time."""
        return Setting("kafka", self._clusters.draw(lambda _: True), tuple(self._names))

    def at_all(self, setting: Setting) -> Fault:
        """A fault that strikes everything at such a site."""
        return self._blows.draw(lambda fault: fault.fits_setting(setting))

    def at_one_query(self, setting: Setting, workload: str) -> Fault:
        """A fault that strikes one query there."""

        def fits(fault: Fault) -> bool:
            return fault.fits_query(setting, workload)

        def turn(family: Family) -> tuple[float, int, float]:
            # First of all what is behind its share, and then what fits few: a short plan has few chances for it.
            chances = sum(any(fault.fits_workload(name) for fault in family.faults) for name in self._names)
            return self._dealt[family] / family.share, chances, self._dice.random()

        family = min((family for family in self._dealt if any(map(fits, family.faults))), key=turn)
        self._dealt[family] += 1
        return self._of_family[family].draw(fits)

    def _queries(self, source: str, *, stateful: int) -> tuple[str, ...]:
        """So many that keep state, one of the Data Source's always, and others."""
        chosen = [self._workloads[True].draw(lambda _: True) for _ in range(stateful)]
        if source == "kafka":
            # A short plan may have no second round of this source.
            chosen += self._for_kafka
            self._for_kafka = []
        while len(chosen) < _QUERIES:
            is_missing = len(chosen) == _QUERIES - 1 and not any(map(_by_data_source, chosen))
            others = [name for name in self._names if name not in chosen and _reads(name, source)]
            may_be = [name for name in others if _by_data_source(name) or not is_missing]
            chosen.append(self._workloads[False].draw(may_be.__contains__))
        return tuple(chosen)

    def _behind_poolers(self, workloads: tuple[str, ...]) -> tuple[str, ...]:
        """Two of these, none where there is no PgBouncer."""
        chosen: list[str] = []
        while len(chosen) < _POOLED and POOLER not in self.missing:
            chosen.append(self._pooled.draw(lambda name: name in workloads and name not in chosen))
        return tuple(chosen)
