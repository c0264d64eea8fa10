"""
How long does a recovery wait for a Postgres that is away?

Runs on the driver before a start, and in the command ``pgonce``. Invariant: work that is tried again has not changed a
file yet. It asks Postgres first, and the last thing that it tells Postgres, the fence, may be set twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ..errors import LedgerError
from ..postgres.backoff import patiently
from ..postgres.translate import driver_error, ledger_error, passes

_log = logging.getLogger("pgonce")

_T = TypeVar("_T")


def recovered(work: Callable[[], _T], what: str, seconds: float) -> _T:
    """
    What ``work`` returns. It is tried again for ``seconds`` while Postgres is away, or gives an error that passes.

    :param what: the checkpoint or the query, for the log.
    :raises PgonceError: what ``work`` raised in the last try.
    """
    trying = f"recovery of {what}: trying again"
    return patiently(work, seconds, log=_log, trying=trying, failed=_failed, may_pass=_may_pass)


def _may_pass(error: Exception) -> bool:
    return passes(error.__cause__ if isinstance(error, LedgerError) else error)


def _failed(error: Exception, _: bool) -> Exception:
    cause = driver_error(error)
    if cause is not None:
        return ledger_error(cause, "recovering")
    # A traceback would print what Postgres said of a row of the ledger.
    error.__cause__, error.__suppress_context__ = None, True
    return error
