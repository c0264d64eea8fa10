"""
Let a plan's faults strike, and write down what became of the rows.

Runs in: the laboratory (``make chaos``; CI runs a short plan). Invariant: each wave of faults is judged before
the next one, so that a lost or doubled row is found close to its cause; a round that went wrong keeps its evidence.
"""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from chaos.oracle import Judgement
from chaos.plan import Aimed, Round
from chaos.site import NotRecovered, Site
from kafka_broker import KafkaBroker

_REFUSALS = {
    *("FOREIGN", "UNKNOWN", "FENCED", "DUPLICATE", "CHANGED", "GAP", "DISJOINT", "BACKWARD"),
    *("POSITION_WENT_BACK", "PARTITION_MIXED", "RECREATED", "TARGET_CHANGED"),
}


@dataclass
class Outcome:
    """
    What one fault did; ``recovery`` in seconds from the strike to the end of the batch that was hit.

    In real time a query has recovered when rows of each partition come again that came after the fault.
    """

    fault: str
    round: int
    source: str
    aimed_at: str
    hit: list[str]
    recovery: float | None = None
    lost: int = 0
    doubled: int = 0
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    # How often each path was taken; at the end of a round.
    paths: dict[str, int] = field(default_factory=dict)
    in_real_time: bool = False


def run_round(
    round_: Round, directory: Path, broker: KafkaBroker | None, bin_dir: Path | None, say: Callable[[str], None]
) -> Iterator[Outcome]:
    """
    Run one round; the last outcome judges its end.

    The directory goes when all was well, and stays with everything in it when something was wrong.
    """
    clean = False
    try:
        with Site(directory, round_.setting, broker, bin_dir) as site:
            try:
                found = []
                for outcome in _strike_all(site, round_, say):
                    found.append(outcome)
                    yield outcome
                clean = not any(outcome.wrong for outcome in found)
            except NotRecovered as error:
                yield _end(site, round_, [f"{error}; see {directory}"], {})
            finally:
                if not clean:
                    site.keep_evidence()
    finally:
        if clean:
            shutil.rmtree(directory, ignore_errors=True)


def _strike_all(site: Site, round_: Round, say: Callable[[str], None]) -> Iterator[Outcome]:
    dice = random.Random(round_.seed)
    for wave in round_.waves:
        outcomes = _strike(site, round_, wave, dice)
        for outcome in outcomes:
            say(_line(outcome))
            yield outcome
    judgements = site.finish()
    end = _end(site, round_, site.paths_not_taken(), judgements)
    end.paths = site.paths_taken()
    yield end


def _strike(site: Site, round_: Round, wave: tuple[Aimed, ...], dice: random.Random) -> list[Outcome]:
    seeds = [dice.randrange(2**32) for _ in wave]
    with ThreadPoolExecutor(len(wave)) as pool:
        struck = pool.map(lambda pair: _strike_one(site, round_, *pair), zip(wave, seeds, strict=True))
        outcomes = list(struck)
    news = site.news()
    judgements = site.judge()
    for outcome in outcomes:
        concerned = outcome.hit or [outcome.aimed_at]
        _add(outcome, news if len(wave) == 1 else [item for item in news if item["workload"] in concerned])
        for name, judgement in judgements.items():
            if len(wave) == 1 or name in concerned:
                _add_judgement(outcome, judgement)
    return outcomes


def _strike_one(site: Site, round_: Round, aimed: Aimed, seed: int) -> Outcome:
    hit, at, wrong = aimed.fault.strike(site, aimed.workload, random.Random(seed))
    outcome = _outcome(round_, aimed.fault.name, aimed.workload, hit, wrong)
    site.wait_for_recovery({name: site.planned(name) for name in hit})
    outcome.recovery = time.monotonic() - at if hit else None
    return outcome


def _end(site: Site, round_: Round, wrong: list[str], judgements: dict[str, Judgement]) -> Outcome:
    outcome = _outcome(round_, "end of the round", "all", [], wrong)
    _add(outcome, site.news())
    for judgement in judgements.values():
        _add_judgement(outcome, judgement)
    return outcome


def _outcome(round_: Round, fault: str, aimed_at: str, hit: list[str], wrong: Iterable[str]) -> Outcome:
    setting = round_.setting
    return Outcome(
        fault, round_.number, setting.source, aimed_at, hit, wrong=list(wrong), in_real_time=setting.in_real_time
    )


def _add(outcome: Outcome, news: list[dict[str, Any]]) -> None:
    for item in news:
        if item["event"] == "started":
            continue
        refusals = [code for code in item["codes"] if code in _REFUSALS]
        outcome.refused += refusals
        outcome.failed += [] if refusals else [item["codes"][-1] if item["codes"] else "?"]


def _add_judgement(outcome: Outcome, judgement: Judgement) -> None:
    outcome.lost += judgement.lost
    outcome.doubled += judgement.doubled
    outcome.wrong += judgement.wrong


def _line(outcome: Outcome) -> str:
    how = f"{outcome.recovery:5.1f} s" if outcome.recovery is not None else " missed"
    said = ", ".join([*outcome.refused, *outcome.failed])
    return f"{how}  {outcome.fault:45} {','.join(outcome.hit) or outcome.aimed_at:40} {said} {'; '.join(outcome.wrong)}"
