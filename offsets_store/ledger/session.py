"""
How is the ledger opened outside a commit: to read it, or to change it by hand?

Runs wherever the stored offsets are asked for, and in recoveries. Invariant: a block is one transaction, under our
search_path and with a bound for every wait, on a ledger that is there and that this code knows; what psycopg raises in
it leaves it as an error of ours. (A try of a commit has its session from
:mod:`pgonce.offsets_store.commit.one_transaction`.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection

from ..postgres.bounds import LOCK_SECONDS, enter_in_tx
from ..postgres.connect import checked_out, driver_connection
from ..postgres.translate import driver_error, ledger_error
from .migrations import require_ledger
from .restored import follow_restore_in_tx


@contextmanager
def reading(url: str) -> Iterator[Connection]:
    """
    One snapshot of the ledger, in a transaction that cannot write.

    :raises ConnectError: where Postgres cannot be reached.
    :raises LedgerError: where there is no ledger, or it cannot be read.
    """
    options = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    with _opened(url, "reading the ledger", LOCK_SECONDS, options) as connection:
        yield connection


@contextmanager
def writing(url: str, lock_seconds: float = LOCK_SECONDS, **options: Any) -> Iterator[Connection]:
    """
    A transaction that changes the ledger, all of it or nothing.

    :param lock_seconds: how long it waits for each lock.
    :param options: of the connection, such as ``isolation_level``.
    :raises ConnectError: where Postgres cannot be reached.
    :raises LedgerError: where there is no ledger, or it cannot be written.
    """
    with _opened(url, "writing the ledger", lock_seconds, options) as connection:
        yield connection


@contextmanager
def _opened(url: str, doing: str, lock_seconds: float, options: dict[str, Any]) -> Iterator[Connection]:
    try:
        with checked_out(url) as pooled:
            connection = pooled.execution_options(**options)
            with connection.begin():
                enter_in_tx(driver_connection(connection), lock_seconds)
                require_ledger(driver_connection(connection))
                if not options.get("postgresql_readonly"):
                    follow_restore_in_tx(driver_connection(connection))
                yield connection
    except (psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = driver_error(error)
        if cause is None:
            raise
        raise ledger_error(cause, doing) from error
