"""
Stop a task on an executor, so that a test can strike in the meantime.

Runs in: pytest; the executors' side is :mod:`support.gated.sitecustomize`. Invariant: a gate is a file that both sides
can see, and each task that passes one leaves a file, which says where it runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pyspark.sql import DataFrame
from support.passed_through import Batches, passed_through

Moment = Literal["begun", "done"]
"""Before the first row is taken; and after all are encoded, staged or sent, but before the driver is told."""
GATES = "spark.executorEnv.PGONCE_GATES"
"""Spark's setting that says in which folder gates stand."""
COLLECTED = "collected"
"""How rows go in foreachBatch: to the driver, as Arrow, when their task has ended."""

_TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Passed:
    """An attempt of a task at a gate: its Python worker, the host of its executor, and how its rows went."""

    pid: int
    host: str
    way: str


class Gates:
    """The gates of one query's tasks."""

    def __init__(self, folder: Path, query_id: str) -> None:
        self._folder = folder / query_id
        self._folder.mkdir(exist_ok=True)

    def close(self, batch_id: int, moment: Moment, partition_id: int) -> None:
        """
        Stop a task there, before it comes, and each attempt of it.

        If only the first attempt stopped, Spark could end the task without it: where it takes three seconds, as it may
        on a machine that is busy, speculation runs a second attempt, which would go on and be done first.
        """
        (self._folder / f"{batch_id}.{moment}.{partition_id}.closed").touch()

    def open(self) -> None:
        """Let everybody go on."""
        for gate in self._folder.glob("*.closed"):
            gate.unlink(missing_ok=True)

    def passed(self, batch_id: int, moment: Moment, partition_id: int | str = "*") -> list[Passed]:
        """The attempts that have come there, also those that still stand there."""
        found = self._folder.glob(f"{batch_id}.{moment}.{partition_id}.*.passed")
        said = [path.read_text().split(" ") for path in found]
        return [Passed(int(pid), host, way) for pid, host, way in said]


def through_gates(frame: DataFrame) -> DataFrame:
    """The same rows, for a frame that is collected: none of its tasks is ours, so its gates stand in front of it."""
    return passed_through(_through_gates, frame)


def _through_gates(batches: Batches) -> Batches:
    from sitecustomize import pass_gate

    pass_gate("begun", "")
    yield from batches
    pass_gate("done", COLLECTED)


def gated(folder: Path) -> dict[str, str]:
    """Spark's settings of a driver whose executors stop at the gates in a folder."""
    return {
        # The functions of tests as well: those of a frame that is collected.
        "spark.executorEnv.PYTHONPATH": f"{_TESTS / 'support/gated'}:{_TESTS}",
        GATES: str(folder),
    }
