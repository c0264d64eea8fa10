"""
Play a history of ``model/real_time.pml`` with the statements of real time's tasks, on a real Postgres.

Runs in: pytest. Invariant: a line is played to its end before the next one, and what the statements answer, or leave in
the table, is what the model said. The writer in Java, which sends them, is played (:mod:`support.real_time_tasks`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from support.real_time_tasks import QUERY, Task, begun, start
from trial.played_history import Played

from pgonce import OffsetsStore


@dataclass
class PlayedRealTime(Played):
    """A history of runs, and of the tasks that have rows of one partition."""

    runs: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, Any] = field(default_factory=dict)
    stored: dict[str, int] = field(default_factory=dict)
    """How far each task knows the partition to be stored."""
    columns = "id"

    def close(self) -> None:
        """End the sessions of all tasks."""
        for task in self.tasks.values():
            task.connection.close()

    def run(self, number: str, position: str) -> None:
        (last,), *_ = self.site.rows("SELECT max(last_batch_id) FROM pgonce.writers")
        stored = start(p0=0) if last is None else OffsetsStore(self.site.url).latest(QUERY).end_offsets
        self.runs[number] = begun(self.site.url, stored, last=last)
        assert self.runs[number].positions == start(p0=int(position))

    def begin(self, attempt: str, run: str, begins: str) -> None:
        self.tasks[attempt] = Task(self.site.url, self.runs[run], floor=int(begins))
        self.stored[attempt] = int(begins)

    def claim(self, attempt: str, first: str) -> None:
        task = self.tasks[attempt]
        assert task.claims(self.stored[attempt])
        # What is stored of the records that come is dropped.
        assert max(self.stored[attempt], task.next) == int(first)
        self.stored[attempt] = task.next

    def unclaimed(self, attempt: str) -> None:
        assert not self.tasks[attempt].claims(self.stored[attempt])

    def flush(self, attempt: str, first: str, after: str) -> None:
        records = range(int(first), int(after))
        assert self.tasks[attempt].flushes(*records, next_known=self.stored[attempt])
        self.rows += [(record,) for record in records]
        self.stored[attempt] = int(after)

    def unwritten(self, attempt: str, first: str, after: str) -> None:
        records = range(int(first), int(after))
        assert not self.tasks[attempt].flushes(*records, next_known=self.stored[attempt])

    def look(self, attempt: str, is_ours: str, position: str) -> None:
        is_owner, has_claim, at, *_ = self.tasks[attempt].looks() or (False, False, 0)
        assert (is_owner and has_claim, at) == (is_ours == "1", int(position))
        # The answer to a flush may have been lost, and the flush too.
        self.stored[attempt] = at

    def report(self, attempt: str) -> None:
        """Say how far it has come: the next line that begins a task has it."""
