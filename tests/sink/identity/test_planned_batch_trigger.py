"""
A continuous query that has the options of asynchronous progress tracking: Spark would drop its rows.

Covers: sink.identity.planned_batch.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from support.stopped_query import entries, entry, write_checkpoint

from pgonce.sink.errors import SparkError
from pgonce.sink.identity import planned_batch
from pgonce.sink.identity.planned_batch import planned_entry
from pgonce.sink.options.sink_options import parse_options

_WAIT_SECONDS = 0.2


class _Clock:
    """A clock that only ``sleep`` moves: what is decided here is a matter of tenths of a second, which CI may lose."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock of planned_batch."""
    clock = _Clock()
    stands_in = SimpleNamespace(monotonic=lambda: clock.now, time=time.time, sleep=clock.sleep)
    monkeypatch.setattr(planned_batch, "time", stands_in)
    return clock


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Plan a batch of the query with this checkpoint, as a planner's worker does that has planned others before."""
    monkeypatch.setattr(planned_batch, "WAIT_FOR_OFFSETS_SECONDS", _WAIT_SECONDS)

    def planned(interval_ms):
        parsed = parse_options(
            {
                "url": "postgresql://nobody@nowhere",
                "table": "t",
                "checkpointLocation": str(tmp_path),
                "asyncProgressTrackingEnabled": "true",
                "asyncProgressTrackingCheckpointIntervalMs": str(interval_ms),
                "_asyncProgressTrackingOverrideSinkSupportCheck": "true",
                **({"positionColumns": "topic,partition,offset"} if interval_ms else {}),
            },
            overwrite=False,
        )
        return planned_entry(parsed)

    return planned


@pytest.mark.parametrize("interval_ms", [0, 300])
def test_it_is_refused_after_micro_batches_of_the_same_application(plan, clock, tmp_path, interval_ms):
    """What the worker saw of the micro-batches counts no longer than until their next entry is due."""
    write_checkpoint(tmp_path, entries(0))
    plan(interval_ms)
    write_checkpoint(tmp_path, entries(0), commits=[0])
    clock.sleep(interval_ms / 1000 + _WAIT_SECONDS)
    with pytest.raises(SparkError, match="NOT_MICRO_BATCH"):
        plan(interval_ms)


def test_micro_batches_between_two_entries(plan, clock, tmp_path):
    """No entry is due for the interval, and the entry that is due then may come a little later."""
    write_checkpoint(tmp_path, {0: entry(0)})
    plan(300)
    write_checkpoint(tmp_path, entries(0), commits=[0])
    for _ in range(48):
        plan(300)
        clock.sleep(0.01)
    clock.sleep(0.05)
    with pytest.raises(SparkError, match="NOT_MICRO_BATCH"):
        plan(300)
