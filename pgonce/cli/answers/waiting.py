"""
Show that a command is at work, where that takes longer than a person waits without asking.

Runs in a shell. Invariant: it is drawn on stderr, only if that is a terminal, only after two seconds, and it is gone
when the answer comes. What a program reads never has it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn
from rich.progress import TimeElapsedColumn as Elapsed

AFTER_SECONDS = 2.0


class Work:
    """What a command is doing; without a terminal, nothing is drawn."""

    def __init__(self, what: str, total: int | None, progress: Progress | None) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=total) if progress else None
        # The timer's thread begins to draw, and the command's own thread takes it away.
        self._drawing = threading.Lock()
        self._is_over = False

    def draw(self) -> None:
        """Begin to draw, unless it is over."""
        with self._drawing:
            if self._progress and not self._is_over:
                self._progress.start()

    def advance(self) -> None:
        """One of the total is done."""
        if self._progress and self._task is not None:
            self._progress.advance(self._task)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Meanwhile nothing is drawn, because the block prints."""
        with self._drawing:
            is_drawn = self._progress is not None and self._progress.live.is_started
            if self._progress and is_drawn:
                self._progress.stop()
            yield
            if self._progress and is_drawn:
                self._progress.start()

    def end(self) -> None:
        """Take away what is drawn."""
        with self._drawing:
            self._is_over = True
            if self._progress:
                self._progress.stop()


@contextmanager
def at_work(what: str, total: int | None = None) -> Iterator[Work]:
    """Show ``what`` is being done, how long it has taken, and, with a ``total``, how much of it is done."""
    console = Console(stderr=True)
    work = Work(what, total, _progress(console, counts=total is not None) if console.is_terminal else None)
    later = threading.Timer(AFTER_SECONDS, work.draw)
    later.daemon = True
    later.start()
    try:
        yield work
    finally:
        later.cancel()
        work.end()


def _progress(console: Console, *, counts: bool) -> Progress:
    # A sign that turns, in ASCII, because a terminal without Unicode has it too.
    columns: list[ProgressColumn] = [SpinnerColumn("line"), TextColumn("{task.description}", markup=False)]
    columns += [BarColumn(), MofNCompleteColumn()] if counts else []
    # Standard output stays what it is: it may be a file.
    return Progress(*columns, Elapsed(), console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
