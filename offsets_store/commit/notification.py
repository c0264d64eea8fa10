"""
Notify listeners in Postgres that a batch is committed.

Runs in the commit. Invariant: the notification is sent by the transaction that records the batch, so Postgres delivers
it only when that transaction is committed. A batch that is skipped sends none.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection

from ..errors import bad_option
from ..ledger.published import Published
from ..postgres.connect import driver_connection
from ..postgres.text import refuse_unstorable

# Postgres's own bounds: NOTIFY_PAYLOAD_MAX_LENGTH and NAMEDATALEN, each less the byte that ends the text.
_LONGEST_PAYLOAD = 7999
_LONGEST_CHANNEL = 63


def refuse_unfit_channel(channel: str | None) -> None:
    """:raises ConfigurationError: BAD_OPTION, for a name that pg_notify would refuse in every batch."""
    refuse_unstorable(notifyChannel=channel)
    length = len((channel or "").encode())
    if channel is not None and not 0 < length <= _LONGEST_CHANNEL:
        raise bad_option(
            "BAD_OPTION",
            f"notifyChannel has {length} bytes; in Postgres, a channel's name has 1 to {_LONGEST_CHANNEL}.",
            "Use another name, in lower case, so that LISTEN takes it without quotes.",
        )


def notify_in_tx(connection: Connection, channel: str | None, published: Published, **what: Any) -> None:
    """Tell those who listen to ``channel``, if there is one, once this transaction is committed."""
    if channel is not None:
        text = payload({**what, "rows": published.rows, "tables": tables_of(published)})
        # Not by SQLAlchemy, which would read the answer, and so make a round trip of it.
        driver_connection(connection).execute("SELECT pg_catalog.pg_notify(%s, %s)", [channel, text])


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
