"""
Notify listeners in Postgres that a batch is committed.

Runs in the commit. Invariant: the notification is sent by the transaction that records the batch, so Postgres delivers
it only when that transaction is committed. A batch that is skipped sends none.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection

from ..ledger.published import Published
from ..postgres.connect import driver_connection
from ..postgres.one_trip import Asked, Statement

# Postgres's own bound: NOTIFY_PAYLOAD_MAX_LENGTH, less the byte that ends the text.
_LONGEST_PAYLOAD = 7999

_NOTIFY = Statement("SELECT pg_catalog.pg_notify($1, $2)", "channel", "payload")


def notify_in_tx(connection: Connection, channel: str | None, published: Published, **what: Any) -> None:
    """Tell those who listen to ``channel``, if there is one, once this transaction is committed."""
    if channel is not None:
        said = payload({**what, "rows": published.rows, "tables": tables_of(published)})
        Asked(driver_connection(connection), _NOTIFY, {"channel": channel, "payload": said})


def tables_of(published: Published) -> dict[str, int | None] | None:
    """How many rows went into each table; None if it is not known which tables these are."""
    if published.tables is not None:
        return dict(published.tables)
    names = list(published.targets or ())
    return dict.fromkeys(names, published.rows if len(names) == 1 else None) or None


def payload(what: dict[str, Any]) -> str:
    """JSON that Postgres takes: what makes it too long is null."""
    text = json.dumps(what)
    for name in ("tables", "query_name", "sink"):
        if len(text) <= _LONGEST_PAYLOAD:
            break
        text = json.dumps(what := {**what, name: None})
    return text
