"""
What `pgonce watch` is tried on: a ledger with made-up queries, states that were never stored, and a screen to read.

Runs in: pytest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import psycopg
from support.patience import PATIENCE_SECONDS

from pgonce.cli.watch.lines import Marks
from pgonce.cli.watch.poller import Reader
from pgonce.cli.watch.screen import WatchApp
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.status.states import Finding, QueryState

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)

# All of it at once, because three hundred commits take longer than a test may.
_WRITERS = """
INSERT INTO pgonce.writers (query_id, sink_name, query_name, run_id, generation, last_batch_id, end_offsets,
                            created_at, updated_at, targets, checkpoint_location)
SELECT md5('q' || i)::uuid::text, 'public.table_' || i, 'query_' || i, md5('r' || i)::uuid::text, 0, 9,
       '{"0": {"orders": {"0": 1000, "1": 1000}}}', now() - interval '2 h', now() - make_interval(secs => mod(i, 40)),
       '{}', '/checkpoints/' || i
FROM generate_series(1, %(count)s) AS i
"""
_BATCHES = """
INSERT INTO pgonce.batches (writer_id, generation, batch_id, run_id, attempt, start_offsets, end_offsets, offset_log,
                            rows, transport, committed_at)
SELECT writer_id, 0, b, run_id, gen_random_uuid(), end_offsets, end_offsets, 'x', 100 + b, 'inline',
       updated_at - make_interval(mins => (9 - b))
FROM pgonce.writers, generate_series(0, 9) AS b
"""


def fill(url: str, count: int) -> None:
    """Write the records of ``count`` queries, each with ten batches: query_1 into public.table_1, and so on."""
    ensure_ledger(url)
    with psycopg.connect(url) as connection:
        connection.execute("SET CONSTRAINTS ALL DEFERRED")
        connection.execute(_WRITERS, {"count": count})
        connection.execute(_BATCHES)


def fail(url: str, name: str, code: str = "TYPE_MISMATCH", message: str = "Column amount is text.") -> None:
    """Write that the next batch of this query was refused."""
    with psycopg.connect(url) as connection:
        connection.execute(
            "INSERT INTO pgonce.failures (query_id, query_name, sink_name, run_id, batch_id, code, message, seen_by) "
            "SELECT query_id, query_name, sink_name, run_id, last_batch_id + 1, %s, %s, 'commit' FROM pgonce.writers "
            "WHERE query_name = %s",
            [code, message, name],
        )


def state(name: str | None = "orders", **others: Any) -> QueryState:
    """What a query is doing, made up."""
    fields = {
        "query_id": "11111111-1111-4111-8111-111111111111",
        "query_name": name,
        "sink_name": "public.orders",
        "state": "running",
        "because": "it has published lately",
        "batch_id": 12,
        "published_at": NOW - timedelta(seconds=12),
        "rows": 100,
        "transport": "inline",
        "rows_per_second": 1234.0,
        "lag": 10_300,
        "run_id": "aaaaaaaa-1111-4111-8111-111111111111",
        "created_at": NOW - timedelta(days=1),
        "dead_letters": 0,
        "replays": 0,
        **others,
    }
    return QueryState(**{**dict.fromkeys(QueryState.__dataclass_fields__), **fields})


def finding(**others: Any) -> Finding:
    """Something that needs attention, made up."""
    fields = {
        "severity": "critical",
        "finding": "refused",
        "query_id": "11111111-1111-4111-8111-111111111111",
        "query_name": "orders",
        "sink_name": "public.orders",
        "what": "TYPE_MISMATCH at batch 13",
        "since": NOW - timedelta(minutes=4),
        "help": "pgonce explain TYPE_MISMATCH",
        **others,
    }
    return Finding(**fields)


def text_of(lines: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Lines without the roles of their parts."""
    return ["".join(text for text, _ in line) for line in lines]


def shown(app: WatchApp) -> str:
    """All that is on the screen."""
    return "\n".join(app.strip_of(place).text.rstrip() for place in range(app.size.height))


async def until(app: WatchApp, pilot: Any, holds: Callable[[str], bool], seconds: float = PATIENCE_SECONDS) -> str:
    """Wait until this holds of what is on the screen, and return that."""
    end = asyncio.get_running_loop().time() + seconds
    while not holds(shown(app)):
        assert asyncio.get_running_loop().time() < end, shown(app)
        await pilot.pause(0.02)
    return shown(app)


def watching(
    url: str,
    steps: Callable[[WatchApp, Any], Awaitable[None]],
    *,
    size: tuple[int, int] = (80, 24),
    every: float = 0.1,
    marks: Marks | None = None,
    examine: Callable[[str, str | None], Sequence[str]] = lambda *_: ["They agree."],
) -> None:
    """Open the screen without a terminal, and take ``steps`` on it."""

    async def run() -> None:
        reader = Reader(url)
        app = WatchApp(
            reader, reader.look(), place="here", every=every, examine=examine, marks=marks or Marks(ascii_only=False)
        )
        async with app.run_test(size=size) as pilot:
            await steps(app, pilot)

    asyncio.run(run())
