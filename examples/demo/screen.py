"""
Print what the demo does while it runs.

Runs in the demo's own process. Invariant: each event is a line that stays, on a terminal and in a file; only the count
below it changes.
"""

from __future__ import annotations

import time

from outcome import Verdict
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.table import Table
from typing_extensions import Self

_PLAIN_LINE_EVERY_SECONDS = 3.0


class Screen:
    """Lines with the time; on a terminal, a progress bar under them."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._began = time.monotonic()
        self._last_plain_line = self._began
        self._bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=30),
            MofNCompleteColumn(),
            TextColumn("orders in Postgres"),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("Setting up", total=None)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def say(self, text: str, style: str = "") -> None:
        """A line that stays."""
        seconds = time.monotonic() - self._began
        self._last_plain_line = time.monotonic()
        self._console.print(f"{seconds:5.1f} s  {text}", style=style, markup=False, soft_wrap=True)

    def show(self, doing: str, rows: int, orders: int) -> None:
        """Show what is going on now; without a terminal, as a line every few seconds."""
        self._bar.update(self._task, description=doing, completed=rows, total=orders or None)
        if self._bar.disable and time.monotonic() - self._last_plain_line > _PLAIN_LINE_EVERY_SECONDS:
            self.say(f"{doing}: {rows:,} of {orders:,} orders are in Postgres.")

    def result(self, lines: dict[str, str], verdict: Verdict) -> None:
        """The table of results, and the verdict."""
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_column(style="bold")
        table.add_column(justify="right")
        for name, value in lines.items():
            table.add_row(name, value)
        self._console.print(table)
        colour = "green" if verdict.exactly_once else "red"
        self._console.print(verdict.sentence, style=f"bold {colour}", highlight=False, soft_wrap=True)
