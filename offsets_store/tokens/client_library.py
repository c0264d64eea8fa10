"""
Import the client library of a cloud, and keep what it logs about tokens out of the logs.

Runs where a connection is made. Invariants: a library is imported only when its cloud is asked for a token. While a
function of pgonce asks for one, what the library logs at DEBUG in that thread is dropped, because it holds the token,
or the credentials that it is made with; nothing else of its log is touched.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import import_module
from typing import Any

from ..postgres.passwords import source_missing


def client_library(module: str, package: str, extra: str) -> Any:
    """
    The module of a cloud's client library.

    :raises ConfigurationError: PASSWORD_SOURCE_MISSING, if the package is not installed.
    """
    try:
        return import_module(module)
    except ImportError:
        pass
    raise source_missing(
        f"The tokens of passwordFrom=pgonce.tokens:{extra} need the package {package}, which is not installed here.",
        f"Run `pip install 'pgonce[{extra}]'` for every process that connects: on the driver, on executors that stage "
        "rows, and where the command line runs.",
    )


_asks: ContextVar[bool] = ContextVar("asks_for_a_token", default=False)


def _may_be_written(record: logging.LogRecord) -> bool:
    return record.levelno > logging.DEBUG or not _asks.get()


def _listen_to(libraries: tuple[str, ...]) -> None:
    # A filter of a logger does not see the lines of the loggers below it.
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
