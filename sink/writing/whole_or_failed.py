"""
How does a transaction fail with an error of its rows, so that nobody commits what was written before it?

Runs in the commit. Invariant: once an error has left the block, the transaction can only be rolled back: a function of
the user that swallows the error cannot commit without these rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

import psycopg


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
