"""
Judge whether every order arrived once.

Runs in the demo's own process, over what was sent and what Postgres holds. Invariant: the table and the ledger are
compared by ``examples/audit.sql``, in which there is no code of pgonce; it says "exactly once" only if that finds
nothing, and enough kills hit a running query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import psycopg

LEAST_KILLS = 3
_AUDITOR = Path(__file__).parents[1] / "audit.sql"
_FINDINGS = """
SELECT finding FROM pg_temp.audit_rows('sent', 'orders', '{order_id}')
UNION ALL SELECT finding FROM pg_temp.audit_ledger() ORDER BY finding DESC
"""


@dataclass(frozen=True)
class Verdict:
    """``exactly_once`` decides the exit status; ``sentence`` is for people to read."""

    exactly_once: bool
    sentence: str


def audited(url: str, sent: Sequence[tuple[int, int]]) -> Counter[str]:
    """What is wrong with the table of orders and with the ledger, and how often, if these ids and cents were sent."""
    # Temporary tables and functions, which are never committed.
    with psycopg.connect(url) as connection:
        connection.execute(_AUDITOR.read_text())
        connection.execute("CREATE TEMPORARY TABLE sent (order_id bigint, amount numeric)")
        with connection.cursor() as cursor, cursor.copy("COPY sent FROM STDIN") as copy:
            for order_id, cents in sent:
                copy.write_row((order_id, Decimal(cents) / 100))
        found = Counter(finding for (finding,) in connection.execute(_FINDINGS))
        connection.rollback()
    return found


def judge(orders: int, findings: Mapping[str, int], kills: int) -> Verdict:
    """The verdict on so many orders; ``kills`` counts those that hit a running query."""
    if findings:
        said = " and ".join(f"{times:,} {finding}" for finding, times in findings.items())
        return Verdict(False, f"FAILED: of {orders:,} orders, {said}.")
    if not orders:
        return Verdict(False, "FAILED: no order was sent, so nothing is shown.")
    if kills < LEAST_KILLS:
        return Verdict(False, f"FAILED: only {kills} of at least {LEAST_KILLS} kills hit a running query.")
    return Verdict(True, f"EXACTLY ONCE: {orders:,} orders, {kills} kills, none lost, none doubled.")
