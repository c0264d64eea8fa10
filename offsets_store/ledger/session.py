"""
Open the ledger outside a commit: to read it, to change it by hand, or to look for one attempt.

Runs where the stored offsets are asked for, and in recoveries. Invariant: a block is one transaction, under our
search_path and with a bound for every wait, on a ledger that is there and that this code knows; what psycopg raises in
it leaves it as an error of ours. (A try of a commit has its session from
:mod:`pgonce.offsets_store.commit.one_transaction`.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import UUID

import psycopg
import sqlalchemy.exc
from sqlalchemy import Connection

from ..postgres.bounds import LOCK_SECONDS, enter_in_tx
from ..postgres.connect import checked_out, driver_connection, lone
from ..postgres.translate import driver_error, ledger_error
from .migrations import require_ledger
from .restored import follow_restore_in_tx


def reading(url: str) -> AbstractContextManager[Connection]:
    """
    One snapshot of the ledger, in a transaction that cannot write.

    :raises ConnectError: if Postgres cannot be reached.
    :raises LedgerError: if there is no ledger, or it cannot be read.
    """
    return _opened(url, "reading the ledger", LOCK_SECONDS, is_reader=True)


def writing(url: str, lock_seconds: float = LOCK_SECONDS) -> AbstractContextManager[Connection]:
    """
    A transaction that changes the ledger, all of it or nothing.

    :param lock_seconds: how long it waits for each lock.
    :raises ConnectError: if Postgres cannot be reached.
    :raises LedgerError: if there is no ledger, or it cannot be written.
    """
    return _opened(url, "writing the ledger", lock_seconds, is_reader=False)


@contextmanager
def _opened(url: str, doing: str, lock_seconds: float, *, is_reader: bool) -> Iterator[Connection]:
    try:
        # What changes tables may fire event triggers, and these may leave something in the session.
        with (checked_out if is_reader else lone)(url) as connection:
            if is_reader:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            with connection.begin():
                enter_in_tx(driver_connection(connection), lock_seconds)
                require_ledger(driver_connection(connection))
                if not is_reader:
                    follow_restore_in_tx(driver_connection(connection))
                yield connection
    except (psycopg.Error, sqlalchemy.exc.SQLAlchemyError) as error:
        cause = driver_error(error)
        if cause is None:
            raise
        raise ledger_error(cause, doing) from error


# If another writer has published since, the record that is meant may be of the generation before.
_IS_IN = """
  EXISTS (
    SELECT FROM pgonce.writers AS w JOIN pgonce.{} AS b
      ON b.writer_id OPERATOR(pg_catalog.=) w.writer_id
      AND b.generation OPERATOR(pg_catalog.=) ANY (ARRAY[w.generation, w.generation OPERATOR(pg_catalog.-) 1])
      AND b.batch_id OPERATOR(pg_catalog.=) %(batch_id)s
    WHERE w.query_id OPERATOR(pg_catalog.=) %(query_id)s AND b.attempt OPERATOR(pg_catalog.=) %(attempt)s)
"""
# One statement by itself, so one round trip; every name in it has its schema.
_ASK = f"SELECT {_IS_IN.format('batches')} OR {_IS_IN.format('replays')}"


def is_recorded(url: str, query_id: str, batch_id: int, attempt: UUID) -> bool:
    """
    Whether the ledger says that ``attempt`` has published (or adopted) this batch, or skipped it.

    :raises ConnectError: if Postgres cannot be reached.
    :raises psycopg.Error: what Postgres says.
    """
    asked = {"query_id": query_id, "batch_id": batch_id, "attempt": attempt}
    with checked_out(url) as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT")
        ((is_there,),) = driver_connection(connection).execute(_ASK, asked)
    return bool(is_there)
