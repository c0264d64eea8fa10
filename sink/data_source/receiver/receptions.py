"""
Which batches does this receiver expect, and is there anything left for it to do?

Runs in the receiver. Invariant: of each writer, one batch is expected at a time.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from uuid import UUID

from .messages import PlannedReception
from .reception import Reception

# The first large task of a batch may be a slow one.
IDLE_SECONDS = 600.0
# Once the planner's worker is gone, no more batches come.
LEFT_ALONE_SECONDS = 60.0
# A task may call before the plan has been read, because both are sent at the same time.
_PLAN_SECONDS = 10.0
# How many batches that are over are remembered: a call for one of them need not wait for its plan.
_REMEMBERED = 100


class Receptions:
    """The batches that may still be committed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._planned: dict[UUID, Reception] = {}
        self._over: deque[UUID] = deque(maxlen=_REMEMBERED)
        self._used_at = time.monotonic()
        self.is_alone = False

    def plan(self, plan: PlannedReception) -> None:
        """A batch was planned; an earlier one of the same writer is over."""
        reception = Reception(plan.token, plan.options, plan.struct_type)
        with self._changed:
            over = [token for token, other in self._planned.items() if other.writer == reception.writer]
            for token in over:
                self._drop(token)
            self._planned[plan.token] = reception
            self._used_at = time.monotonic()
            self._changed.notify_all()

    def of(self, token: UUID) -> Reception | None:
        """The reception of a planned batch; None if the batch is over."""
        with self._changed:
            self._changed.wait_for(lambda: token in self._planned or token in self._over, timeout=_PLAN_SECONDS)
            return self._planned.get(token)

    def end(self, token: UUID) -> None:
        """The batch is committed, or has failed."""
        with self._changed:
            self._drop(token)
            self._used_at = time.monotonic()

    def _drop(self, token: UUID) -> None:
        reception = self._planned.pop(token, None)
        self._over.append(token)
        if reception is not None:
            reception.give_up()

    def wake(self) -> None:
        """Wake transactions that wait: they may have waited too long."""
        with self._changed:
            receptions = list(self._planned.values())
        for reception in receptions:
            reception.look_at_clock()

    def has_work(self) -> bool:
        """Whether a batch may still come, or be finished."""
        with self._changed:
            idle_seconds = time.monotonic() - self._used_at
            is_idle = idle_seconds > (LEFT_ALONE_SECONDS if self.is_alone else IDLE_SECONDS)
            return not is_idle or any(reception.may_be_finished() for reception in self._planned.values())
