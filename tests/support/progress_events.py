"""A progress event as the listener has heard it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

from support.ledger_history import QUERY, RUN

from pgonce.offsets_store.progress.event import Heard


def heard(*, batch_id: int = 0, end: Any = None, query_id: str = QUERY) -> Heard:
    """One event, of the run that `publish` publishes for."""
    at = datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=batch_id)
    return Heard(query_id, RUN, batch_id, "orders", at, 1, {"0": None}, end or {"0": 3}, {"0": None}, {})
