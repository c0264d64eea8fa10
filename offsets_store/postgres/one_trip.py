"""
Send several statements in one round trip.

Runs where the ledger is read and written. Invariant: the statements run in the order in which they were sent, each with
a snapshot of its own, and none after one that has failed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from psycopg.rows import dict_row
from sqlalchemy import Compiled, Connection, Dialect, Select

from .connect import driver_connection


@contextmanager
def one_trip(connection: Connection) -> Iterator[None]:
    """
    Send the block's statements in one round trip; none may need another's answer. What was :class:`Asked` is answered
    afterwards, and other answers are not read.

    If the block ends without an error, all of them were done; an error of one of them is raised at its end.
    """
    # libpq before 14 cannot; psycopg[binary] brings a newer one.
    with driver_connection(connection).pipeline() if psycopg.Pipeline.is_supported() else nullcontext():
        yield


class Asked:
    """
    A question that was sent within :func:`one_trip`, and its answer.

    SQLAlchemy itself would wait for the answer before the next statement is sent.
    """

    def __init__(self, connection: Connection, question: Select[Any], parameters: Mapping[str, Any]) -> None:
        compiled = _compiled(question, connection.dialect)
        self._cursor = driver_connection(connection).cursor(row_factory=dict_row)
        # Times as text could not be read: Postgres tells of another DateStyle only at the end of the trip.
        self._cursor.execute(str(compiled), compiled.construct_params(parameters), binary=True)

    @property
    def is_answered(self) -> bool:
        """Whether Postgres has answered; not if the question, or a statement before it, has failed."""
        result = self._cursor.pgresult
        return result is not None and result.status == ExecStatus.TUPLES_OK

    def row(self) -> dict[str, Any] | None:
        """The row of the answer, if there is one; to be called once."""
        return self._cursor.fetchone()


@lru_cache(maxsize=128)
def _compiled(question: Select[Any], dialect: Dialect) -> Compiled:
    return question.compile(dialect=dialect)
