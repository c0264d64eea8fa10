"""
Search a model of ``model/`` with Spin, or let Spin play one history of it.

Runs in: pytest, and `make model`. It needs Debian's packages spin and gcc.

https://spinroot.com/spin/Man/Spin.html
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from maven import MissingTool

_MODELS = Path(__file__).parent / "model"
_COMPILE = ["gcc", "-w", "-O2", "-DCOLLAPSE", "-DVECTORSZ=2048"]
_DEEPEST = 200_000
_SECONDS = 1_200


@dataclass(frozen=True)
class Searched:
    """The states that were visited, and the lines that led to the first error; none if no state is one."""

    states: int
    seconds: float
    steps: tuple[str, ...] = ()


def search(model: str, defines: Sequence[str], folder: Path, *, liveness: bool = False) -> Searched:
    """
    Every order of events of ``model`` with these macros, in a ``folder`` for Spin's files.

    :param liveness: look for a history in which the model's ``ltl`` never comes true, although every process goes on.
    :raises RuntimeError: if the search did not come to its end.
    """
    given = [f"-D{define}" for define in (*defines, *(["LIVENESS"] if liveness else []))]
    source = str(_MODELS / f"{model}.pml")
    _run(["spin", "-a", *given, source], folder)
    _run([*_COMPILE, *([] if liveness else ["-DSAFETY"]), "-o", "pan", "pan.c"], folder)
    options = ["-a", "-f"] if liveness else []
    said = _run(["./pan", f"-m{_DEEPEST}", *options], folder)
    trail = folder / f"{model}.pml.trail"
    if not trail.exists() and ("errors: 0" not in said or "not completed" in said):
        raise RuntimeError(said[-2000:])
    states = int(re.findall(r"([\d.e+]+) states, stored", said)[0])
    seconds = float(re.findall(r"elapsed time ([\d.e+-]+) seconds", said)[0])
    steps = _lines(_run(["spin", "-k", str(trail), "-T", *given, source], folder)) if trail.exists() else ()
    return Searched(states, seconds, steps)


def play(model: str, defines: Sequence[str], seed: int, folder: Path) -> tuple[str, ...]:
    """The lines of one history, in which Spin chooses at random."""
    given = [f"-D{define}" for define in defines]
    return _lines(_run(["spin", f"-n{seed}", "-u4000", "-T", *given, str(_MODELS / f"{model}.pml")], folder))


def _lines(said: str) -> tuple[str, ...]:
    """What the model has printed; the rest is Spin's."""
    return tuple(line for line in said.splitlines() if re.fullmatch(r"[a-z]+( \w+)*", line))


def _run(command: Sequence[str], folder: Path) -> str:
    for tool in ("spin", "gcc"):
        if shutil.which(tool) is None:
            raise MissingTool(f"The model needs {tool}: apt-get install spin gcc libc6-dev")
    done = subprocess.run(command, cwd=folder, capture_output=True, check=False, timeout=_SECONDS)
    return (done.stdout + done.stderr).decode(errors="replace")
