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


@contextmanager
def one_trip(connection: Connection) -> Iterator[None]:
    """Send the block's statements together; an error of one of them is raised at the end of the block."""
    # libpq before 14 cannot; psycopg[binary] brings a newer one.
    with driver_connection(connection).pipeline() if psycopg.Pipeline.is_supported() else nullcontext():
        yield
