"""
The picture docs/watch.svg: the screen of `pgonce watch` with made-up queries; ``make docs`` draws it.

Runs in: the command.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from rich.console import Console
from rich.text import Text
from support.watched import finding, state

from pgonce.cli.watch.lines import Marks
from pgonce.cli.watch.poller import Picture, Reader
from pgonce.cli.watch.screen import STYLES, WatchApp
from pgonce.offsets_store.status.states import QueryState

PICTURE = Path(__file__).parents[2] / "docs" / "watch.svg"
WIDTH, HEIGHT = 110, 20

_QUERIES = {
    # Name: sink, state, batch, seconds since it published, rows a second, lag, and where the hour's course leads.
    "payments": ("billing.payments", "refused", 912, 11_000, 0, None, "stops"),
    "clicks": ("public.clicks", "lagging", 88_120, 6, 18_800, 1_204_000, "rises"),
    "orders": ("public.orders", "running", 10_422, 4, 237, 0, "waves"),
    "orders_by_hour": ("public.orders_by_hour", "running", 10_421, 9, 13.7, 0, "waves"),
    "customers": ("public.customers", "idle", 5_120, 600, 0, 0, "falls"),
    "inventory": ("warehouse.stock_levels", "running", 770, 2, 90, 12, "waves"),
    "sessions": ("analytics.sessions", "running", 44_810, 3, 3_667, 310, "rises"),
    "returns": ("public.returns", "quiet", 310, 5_400, 0, None, "stops"),
}
_COURSES = {
    "stops": lambda minute: 50 + (minute * 7) % 20 if minute < 35 else 0,
    "rises": lambda minute: 20 + minute + (minute * 11) % 15,
    "falls": lambda minute: max(60 - minute, 0) if minute < 50 else 0,
    "waves": lambda minute: 40 + 25 * ((minute // 7) % 3) + (minute * 5) % 9,
}


def _states(now: datetime) -> Iterator[QueryState]:
    for number, (name, (sink, word, batch, seconds, rate, lag, _)) in enumerate(_QUERIES.items()):
        published = now - timedelta(seconds=seconds)
        yield state(
            name, query_id=f"{number}", sink_name=sink, state=word, batch_id=batch, published_at=published,
            rows_per_second=float(rate), lag=lag,
        )  # fmt: skip


def draw() -> None:
    """Draw it, as it looks in a terminal with colours."""
    # A time that stays: the file changes only if the screen does.
    now = datetime(2026, 11, 24, 9, 30, tzinfo=timezone.utc)
    states = tuple(_states(now))
    hours = {
        (one.query_id, one.sink_name): tuple(map(_COURSES[_QUERIES[one.query_name][-1]], range(60))) for one in states
    }
    findings = (
        finding(
            query_name="payments",
            what="NOT_NULL_VIOLATION at batch 913",
            since=now - timedelta(hours=3),
            help="pgonce explain NOT_NULL_VIOLATION",
        ),
        finding(
            severity="warning",
            finding="lagging",
            query_name="clicks",
            what="its last ten batches have not reduced the lag",
            since=None,
            help="pgonce explain performance",
        ),
    )
    picture = Picture(now, states, findings, hours)
    app = WatchApp(Reader(""), picture, place="orders at db1:5432", every=2, examine=lambda *_: (), marks=Marks())
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="standard")
    for line in app.all_lines(WIDTH, HEIGHT, now):
        console.print(Text.assemble(*((text, STYLES[role]) for text, role in line)), no_wrap=True, crop=True)
    svg = console.export_svg(title="pgonce watch", unique_id="watch")
    # The fonts of whoever looks at it: a picture loads nothing from elsewhere.
    PICTURE.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL))


if __name__ == "__main__":
    draw()
