"""
Read what has reached Postgres.

Runs in the demo's own process, over one connection that only reads. Invariant: it reads the ledger and the table as any
user could in psql; the job and the demo share nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import psycopg
from psycopg.rows import class_row


@dataclass(frozen=True)
class Standing:
    """The newest published batch, the run that published it, and how many rows there are."""

    run_id: str
    last_batch_id: int
    rows: int


@dataclass(frozen=True)
class Latency:
    """How many ms after they were placed orders were visible, and how many orders that were."""

    p50: float
    p99: float
    greatest: float
    orders: int


_LATENCY = """
SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY ms), 0) AS p50,
    coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY ms), 0) AS p99,
    coalesce(max(ms), 0) AS greatest, count(*) AS orders
FROM (SELECT extract(epoch FROM pg_xact_commit_timestamp(o.xmin) - o.placed_at)::float8 * 1000 AS ms
      FROM orders AS o JOIN unnest(%s::timestamptz[], %s::timestamptz[]) AS stretch (begun, ended)
      ON o.placed_at >= begun AND pg_xact_commit_timestamp(o.xmin) <= ended) AS timed
"""


class Watch:
    """A look at the ledger and at the table."""

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=on")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def standing(self) -> Standing | None:
        """How far the writer is; None before its first batch."""
        cursor = self._connection.cursor(row_factory=class_row(Standing))
        try:
            return cursor.execute(
                "SELECT run_id, last_batch_id, (SELECT sum(rows)::bigint FROM pgonce.batches) AS rows "
                "FROM pgonce.writers"
            ).fetchone()
        except psycopg.errors.UndefinedTable:
            # The first batch creates the ledger.
            return None

    def batches(self) -> int:
        """How many batches are recorded."""
        return self._number("SELECT count(*) FROM pgonce.batches")

    def replays(self) -> int:
        """How many batches were handed over again, and skipped."""
        return self._number("SELECT count(*) FROM pgonce.replays")

    def messages_read(self) -> int:
        """How many messages are below the end offsets of a topic that was read from its beginning."""
        try:
            return self._number("SELECT coalesce(sum(end_offset::text::bigint), 0) FROM pgonce.current_offsets")
        except psycopg.errors.UndefinedTable:
            return 0

    def latency(self, stretches: Sequence[tuple[datetime, datetime]]) -> Latency:
        """Of all orders that were placed and became visible within one of these stretches of time."""
        begun, ended = zip(*stretches, strict=True)
        cursor = self._connection.cursor(row_factory=class_row(Latency))
        latency = cursor.execute(_LATENCY, [list(begun), list(ended)]).fetchone()
        assert latency
        return latency

    def longest_wait_seconds(self) -> float:
        """Of all orders, from when one was placed to when it was visible."""
        query = "SELECT extract(epoch FROM max(pg_xact_commit_timestamp(xmin) - placed_at))::float8 FROM orders"
        row = self._connection.execute(query).fetchone()
        assert row
        return float(row[0] or 0)

    def end_offsets(self) -> list[str]:
        """How far the writer is in its source, with a line for each topic partition or source."""
        found = self._connection.execute(
            "SELECT coalesce(topic || '/' || partition || ': ', '') || end_offset FROM pgonce.current_offsets "
            "ORDER BY topic, partition"
        )
        return [line for (line,) in found]

    def rows(self) -> int:
        """Count the rows of the table."""
        return self._number("SELECT count(*) FROM orders")

    def _number(self, query: str) -> int:
        row = self._connection.execute(query).fetchone()
        assert row
        return int(row[0])
