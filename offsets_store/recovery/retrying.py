"""
How long does a recovery wait for a Postgres that is away?

Runs on the driver before a start, and in the command ``pgonce``. Invariant: work that is tried again has not changed a
file yet. It asks Postgres first, and the last thing that it tells Postgres, the fence, may be set twice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import psycopg

from pgonce.offsets_store.errors import ConnectError, LedgerError
from pgonce.offsets_store.postgres.backoff import Backoff
from pgonce.offsets_store.postgres.translate import ledger_error, passes, scrub

_log = logging.getLogger("pgonce")

_T = TypeVar("_T")


def patiently(work: Callable[[], _T], what: str, seconds: float) -> _T:
    """
    What ``work`` returns. It is tried again for ``seconds`` while Postgres is away, or gives an error that passes.

    :param what: the checkpoint or the query, for the log.
    :raises PgonceError: what ``work`` raised in the last try.
    """
    backoff = Backoff(seconds)
    while True:
        try:
            return work()
        except (ConnectError, LedgerError, psycopg.Error) as error:
            pause = backoff.next_pause() if passes(error) else None
            if pause is None:
                raise ledger_error(error, "recovering") if isinstance(error, psycopg.Error) else error from None
            reason = scrub(" ".join(str(error).split()))
        _log.warning("recovery of %s: trying again in %.1f s: %s", what, pause, reason)
        time.sleep(pause)
