"""
Go back to a savepoint after rows were refused, or fail the transaction, so that what was written before is not
committed.

Runs in the commit. Invariant: once an error has left :func:`whole_or_failed`, the transaction can only be rolled back:
a function of the user that swallows the error cannot commit without these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg
from psycopg import sql

SAVEPOINT = sql.SQL("SAVEPOINT pgonce_rows")
"""To be sent with the first statement that may refuse gathered rows, so that they are still there afterwards."""
RELEASE = sql.SQL("RELEASE SAVEPOINT pgonce_rows")
"""To be sent with the last one."""

BACK = sql.SQL("ROLLBACK TO SAVEPOINT pgonce_rows")
"""To be sent where an error of such a statement does not end the batch."""


@contextmanager
def whole_or_failed(connection: psycopg.Connection) -> Iterator[None]:
    """An error fails the transaction too."""
    try:
        yield
    except Exception:
        fail_in_tx(connection)
        raise


def fail_in_tx(connection: psycopg.Connection) -> None:
    """Fail the transaction."""
    with suppress(psycopg.Error):
        # There is no savepoint of this name. The server's log shows the name.
        connection.execute('ROLLBACK TO SAVEPOINT "pgonce: the batch was refused"')
