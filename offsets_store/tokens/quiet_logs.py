"""
What do the clouds' libraries log while they make a token?

Runs wherever a connection is made. Invariant: while one of our functions asks for a token, what these libraries log at
DEBUG is dropped, because it holds the token; at all other times, and in other threads, nothing of theirs is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

_asks: ContextVar[bool] = ContextVar("asks_for_a_token", default=False)


def _may_be_written(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or not _asks.get()


@cache
def _listen_to(logger: str) -> None:
    logging.getLogger(logger).addFilter(_may_be_written)


@contextmanager
def quiet(logger: str) -> Iterator[None]:
    """Drop what this logger writes at DEBUG in this thread while the block runs."""
    _listen_to(logger)
    before = _asks.set(True)
    try:
        yield
    finally:
        _asks.reset(before)
