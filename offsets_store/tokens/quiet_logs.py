"""
What do the clouds' libraries log while they make a token?

Runs wherever a connection is made. Invariant: while one of our functions asks for a token, what these libraries log at
DEBUG is dropped, because it holds the token, or the credentials with which it is made; at all other times, and in other
threads, nothing of theirs is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_asks: ContextVar[bool] = ContextVar("asks_for_a_token", default=False)


def _may_be_written(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or not _asks.get()


def _listen_to(libraries: tuple[str, ...]) -> None:
    # A filter of a logger does not hear what those below it have to say.
    below = tuple(f"{library}." for library in libraries)
    names = [name for name in list(logging.root.manager.loggerDict) if name.startswith(below)]
    for name in (*libraries, *names):
        logging.getLogger(name).addFilter(_may_be_written)


@contextmanager
def quiet(*libraries: str) -> Iterator[None]:
    """
    Drop what the loggers of these libraries write at DEBUG in this thread while the block runs.

    These are the loggers that the names stand for, and those below them that are there when the block begins: import
    the library before.
    """
    _listen_to(libraries)
    before = _asks.set(True)
    try:
        yield
    finally:
        _asks.reset(before)
