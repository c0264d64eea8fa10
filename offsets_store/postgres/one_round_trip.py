"""
Send several statements, none of which needs another's answer, in one round trip.

Runs in the commit. Invariant: if the block ends without an error, all of them were done. Their answers are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import psycopg
from sqlalchemy import Connection

from .connect import driver_connection
from .translate import is_transient, ledger_error


@contextmanager
def one_trip(connection: Connection) -> Iterator[None]:
    """
    Send the block's statements on the ledger together.

    :raises LedgerError: what Postgres says of one of them, if it does not pass by itself.
    """
    # libpq before 14 cannot; psycopg[binary] brings a newer one.
    pipeline = driver_connection(connection).pipeline() if psycopg.Pipeline.is_supported() else nullcontext()
    try:
        with pipeline:
            yield
    except psycopg.Error as error:
        # When the answer comes, SQLAlchemy cannot translate it any more and say which statement it was.
        if is_transient(error):
            raise
        raise ledger_error(error, "writing the ledger") from None
