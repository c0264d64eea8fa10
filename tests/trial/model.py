"""
Search the models of ``model/`` in every order of events, as they are and without each of their guards: `make model`.

Runs in: a shell, two searches at a time. Exit code 0 if no history is bad, and each guard is missed when it is gone.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from maven import MissingTool
from trial.spin import Searched, search

FORMAT = "FORMAT"


@dataclass(frozen=True)
class Search:
    """One search: of which model, with which macros, and for what."""

    model: str
    defines: tuple[str, ...]
    liveness: bool = False
    finds: bool = False
    """Whether there is a bad history, because a guard is missing."""

    @property
    def title(self) -> str:
        """What is searched, in the words of the model."""
        return " ".join([self.model, *self.defines, *(["(does it go on?)"] if self.liveness else [])])


BOUNDS = (("STARTS=2", "FAULTS=2"), ("STARTS=3", "FAULTS=1", "RECORDS=3"), ("STARTS=2", "FAULTS=3", "RECORDS=3"))
"""Runs of all drivers, faults, and records of the source (else 4); the defaults of the models are the rest."""
ALONE = ("FAULTS=0", "DRIVERS=1", "RECORDS=3")
WAYS = ((), (FORMAT,))
ONE_DRIVER = ("DRIVERS=1", "RECORDS=3", "BATCHES=3")
TWO_DRIVERS = ("STARTS=2", "FAULTS=0", "RECORDS=3", "BATCHES=3")
TWO_AND_A_FAULT = ("STARTS=2", "FAULTS=1", "RECORDS=3", "BATCHES=2")
WHOLE = [Search("batches", (*way, *bounds)) for bounds in BOUNDS for way in WAYS]
WHOLE += [Search("by_position", bounds) for bounds in (ONE_DRIVER, TWO_DRIVERS, TWO_AND_A_FAULT)]
WHOLE += [Search("real_time", ("RECORDS=4",)), Search("real_time", ("FAULTS=3",))]
GOES_ON = [Search("batches", (*way, *ALONE), liveness=True) for way in WAYS]
GOES_ON.append(Search("by_position", (*ALONE, "ALL_SELECTED"), liveness=True))
GOES_ON.append(Search("real_time", ("FAULTS=0", "TASKS=1"), liveness=True))
SMALL = [Search("batches", ("STARTS=2", "FAULTS=1", *way)) for way in WAYS]
ALONE_WITH_A_FAULT = (*ONE_DRIVER, "FAULTS=1")
SMALL.append(Search("by_position", ALONE_WITH_A_FAULT))
SMALL.append(Search("real_time", ("FAULTS=1",)))
# What each guard is for stands in the model, where it is taken away.
GUARDS = {
    "FOREIGN": (FORMAT, "FAULTS=1"),
    "UNKNOWN": (FORMAT, "FAULTS=1"),
    "TOKEN": (FORMAT, "FAULTS=1"),
    "TEXT": (FORMAT, "FAULTS=1"),
    "GAP": (FORMAT, "FAULTS=1"),
    "FOLLOWS": (FORMAT, "FAULTS=1"),
    "LOCK": (FORMAT, "FAULTS=0"),
    "ONE_TRANSACTION": (FORMAT, "FAULTS=0"),
    "OWN_ENTRY": ("FAULTS=1",),
    "START": ("FAULTS=2",),
}
WITHOUT = [Search("batches", (f"NO_{guard}", "STARTS=3", *defines), finds=True) for guard, defines in GUARDS.items()]
WITHOUT += [Search("real_time", (f"NO_{guard}",), finds=True) for guard in ("KNOWN", "DROP", "CLAIM", "POSITION")]
POSITION_GUARDS = {
    "TOKEN": ALONE_WITH_A_FAULT,
    "NEXT": ALONE_WITH_A_FAULT,
    "GAP": ALONE_WITH_A_FAULT,
    "DROP": ALONE_WITH_A_FAULT,
    "LOCK": TWO_DRIVERS,
    "START": TWO_AND_A_FAULT,
}
WITHOUT += [Search("by_position", (f"NO_{guard}", *how), finds=True) for guard, how in POSITION_GUARDS.items()]
WITHOUT.append(Search("batches", ("NO_REPLAY", FORMAT, *ALONE), liveness=True, finds=True))


def run(one: Search) -> Searched:
    """The search, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        return search(one.model, one.defines, Path(folder), liveness=one.liveness)


def main(searches: Sequence[Search]) -> int:
    """Say of each search what it has found; 0 if that was what is to be found."""
    states, is_bad = 0, False
    with ThreadPoolExecutor(2) as pool:
        for one, found in zip(searches, pool.map(run, searches), strict=True):
            is_bad |= bool(found.steps) != one.finds
            states += 0 if one.finds else found.states
            said = f"a bad history of {len(found.steps)} steps" if found.steps else "no bad history"
            print(f"{found.states:>12,} states, {found.seconds:5.1f} s: {said}: {one.title}", flush=True)
            if found.steps and not one.finds:
                print("  " + "; ".join(found.steps))
    print(f"{states:,} states of the whole models, {len(searches)} searches.")
    return int(is_bad)


if __name__ == "__main__":
    try:
        sys.exit(main([*WHOLE, *GOES_ON, *WITHOUT]))
    except MissingTool as missing:
        sys.exit(str(missing))
