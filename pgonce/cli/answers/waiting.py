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
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

AFTER_SECONDS = 2.0


@contextmanager
def at_work(what: str) -> Iterator[None]:
    """Show ``what`` is being done, and how long it has taken."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    # A sign that turns, in ASCII, because a terminal without Unicode has it too.
    columns = SpinnerColumn("line"), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    # Standard output stays what it is: it may be a file.
    progress = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    progress.add_task(what, total=None)
    # The timer's thread begins to draw, and the command's own thread takes it away.
    drawing, is_over = threading.Lock(), threading.Event()

    def draw() -> None:
        with drawing:
            if not is_over.is_set():
                progress.start()

    later = threading.Timer(AFTER_SECONDS, draw)
    later.daemon = True
    later.start()
    try:
        yield
    finally:
        later.cancel()
        with drawing:
            is_over.set()
            progress.stop()
