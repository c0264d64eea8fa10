"""
When did the triggers of the last query run?

Runs on the driver. Invariant: the times are those of Spark's own progress reports, as in `measure.py`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from loads import Load
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
    StreamingQueryProgress,
)
from stretches import Stretch

_LISTENERS_SECONDS = 30.0


class TriggerStretches(StreamingQueryListener):
    """Keeps the reports of one query, until the next one starts."""

    def __init__(self) -> None:
        self._triggers: dict[int, Stretch] = {}
        self._ended = False

    @contextmanager
    def listening(self, spark: SparkSession) -> Iterator[None]:
        """While the block runs."""
        spark.streams.addListener(self)
        try:
            yield
        finally:
            spark.streams.removeListener(self)

    def onQueryStarted(self, _: QueryStartedEvent) -> None:
        """Forget the query before."""
        self._triggers, self._ended = {}, False

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """A trigger without rows has the number of the batch that comes next."""
        if event.progress.numInputRows > 0:
            self._triggers[event.progress.batchId] = _stretch(event.progress)

    def onQueryTerminated(self, _: QueryTerminatedEvent) -> None:
        """All its reports have come: they keep their order."""
        self._ended = True

    def of(self, load: Load) -> list[Stretch]:
        """The measured triggers of the query that was stopped last."""
        until = time.monotonic() + _LISTENERS_SECONDS
        while not self._ended:
            if time.monotonic() > until:
                raise TimeoutError("Spark has not told its listeners that the query has ended.")
            time.sleep(0.05)
        return [self._triggers[batch_id] for batch_id in range(load.warm_up, load.warm_up + load.measured)]


def _stretch(progress: StreamingQueryProgress) -> Stretch:
    begin = datetime.fromisoformat(progress.timestamp).timestamp()
    return Stretch(begin, begin + progress.durationMs["triggerExecution"] / 1000)
