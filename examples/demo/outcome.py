"""
Judge whether every order arrived once.

Pure: runs in the demo's own process, over what was sent and what Postgres holds. Invariant: it says "exactly once" only
if count, ids and content agree and enough kills hit a running query.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

LEAST_KILLS = 3


@dataclass(frozen=True)
class Sent:
    """What was put into the source: orders, with ids from 1 on, and the sum of their fingerprints."""

    orders: int = 0
    checksum: int = 0


@dataclass(frozen=True)
class Found:
    """What the table holds; ``distinct_ids`` counts only ids that were sent."""

    rows: int
    distinct_ids: int
    checksum: int


@dataclass(frozen=True)
class Verdict:
    """``exactly_once`` decides the exit status; ``sentence`` is for people to read."""

    exactly_once: bool
    sentence: str


def fingerprint(order_id: int, cents: int) -> int:
    """32 bits of an order's id and amount; :data:`FINGERPRINT` is the same in Postgres."""
    text = f"{order_id}:{cents // 100}.{cents % 100:02d}"
    return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8], 16)


FINGERPRINT = "('x' || left(md5(order_id || ':' || amount), 8))::bit(32)::bigint"


def sent(orders: Iterable[tuple[int, int]], before: Sent = Sent()) -> Sent:
    """Add orders, as pairs of id and cents, to what was sent before."""
    prints = [fingerprint(order_id, cents) for order_id, cents in orders]
    return Sent(before.orders + len(prints), before.checksum + sum(prints))


def judge(sent: Sent, found: Found, kills: int) -> Verdict:
    """Compare what was sent with what is there; ``kills`` counts those that hit a running query."""
    lost = sent.orders - found.distinct_ids
    extra = found.rows - found.distinct_ids
    faults = []
    if lost:
        faults.append(f"{lost:,} lost")
    if extra:
        faults.append(f"{extra:,} doubled")
    if not faults and found.checksum != sent.checksum:
        faults.append("ids or amounts changed on the way")
    if faults:
        return Verdict(False, f"FAILED: of {sent.orders:,} orders, {' and '.join(faults)}.")
    if not sent.orders:
        return Verdict(False, "FAILED: no order was sent, so nothing is shown.")
    if kills < LEAST_KILLS:
        return Verdict(False, f"FAILED: only {kills} of at least {LEAST_KILLS} kills hit a running query.")
    return Verdict(True, f"EXACTLY ONCE: {sent.orders:,} orders, {kills} kills, none lost, none doubled.")
