"""A progress event, as the listener has heard it, and as it is told to the listener."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

from support.ledger_history import QUERY, RUN

from pgonce.offsets_store.progress.heard import Heard


def heard(*, batch_id: int = 0, end: Any = None, query_id: str = QUERY) -> Heard:
    """One event, of the run that `publish` publishes for."""
    at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=batch_id)
    return Heard(query_id, RUN, batch_id, "orders", at, 1, {"0": None}, end or {"0": 3}, {"0": None}, {})


class Event:
    """A progress event as PySpark hands it to the listener, with the fields that it reads."""

    def __init__(self, batch_id: int = 0) -> None:
        self.progress = SimpleNamespace(
            id=QUERY,
            runId=RUN,
            name="orders",
            batchId=batch_id,
            timestamp=(datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=batch_id)).isoformat(),
            numInputRows=1,
            durationMs={"addBatch": 5},
            sources=[{"startOffset": "None", "endOffset": "3", "latestOffset": "None"}],
        )
