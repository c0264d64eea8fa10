"""
A question about a server, its answer, and how to ask it.

Runs in the command ``pgonce check``. Invariant: every question is asked in a transaction of its own, which is rolled
back in every case, and no wait in it is without a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import psycopg

from pgonce.offsets_store.errors import ConnectError
from pgonce.offsets_store.log_lines import scrub
from pgonce.offsets_store.postgres.search_path import SET_OURS
from pgonce.offsets_store.postgres.translate import is_lost_connection, is_statement_pooling

_BOUNDS = f"{SET_OURS}; SET LOCAL statement_timeout = '10s'"


class Holds(Enum):
    """Whether a promise would hold; ``WEAKER`` is for what works, and is slower or less than it could be."""

    YES = "holds"
    WEAKER = "weaker"
    NO = "does not hold"
    UNKNOWN = "not known"


@dataclass(frozen=True)
class Answer:
    """What was found out, and what to do about it."""

    holds: Holds
    says: str
    remedy: str = ""


@dataclass(frozen=True)
class Question:
    """
    One promise of pgonce, and how to find out whether it would hold.

    :param name: its stable key.
    :param promise: what pgonce promises; it is shown where it does not hold.
    :param ask: called with a connection in a transaction under our search_path.
    """

    name: str
    promise: str
    ask: Callable[[psycopg.Connection], Answer]


@dataclass(frozen=True)
class Finding:
    """A question and its answer, as they are shown."""

    name: str
    promise: str
    holds: Holds
    says: str
    remedy: str


BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""As all transactions begin in which pgonce writes; these sessions are in autocommit mode, to end one at any time."""


def asked(connection: psycopg.Connection, question: Question) -> Finding:
    """
    The answer to a question; a refusal of the server is an answer too.

    :param connection: in autocommit mode, in no transaction.
    :raises ConnectError: CONNECT_FAILED, if the session ends.
    :raises psycopg.Error: only if a pooler forbids transactions.
    """
    try:
        connection.execute(BEGIN)
        try:
            connection.execute(_BOUNDS)
            answer = question.ask(connection)
        finally:
            if not connection.closed:
                connection.execute("ROLLBACK")
    except psycopg.Error as error:
        if is_statement_pooling(error):
            raise
        said = scrub(" ".join((error.diag.message_primary or str(error)).split()))
        if is_lost_connection(error):
            raise ConnectError(
                "CONNECT_FAILED",
                f"The session ended when the server was asked for {question.name}: {said.rstrip('.')}.",
                "Nothing was written.",
                "Run the check again. If its session ends at the same question each time, the server, or a pooler in "
                "front of it, does not do what pgonce needs there.",
                may_pass=True,
            ) from error
        answer = Answer(Holds.NO, f"the server refuses it (SQLSTATE {error.sqlstate or 'none'}): {said}")
    return Finding(question.name, question.promise, answer.holds, answer.says, answer.remedy)


def one_row(connection: psycopg.Connection, query: str, *parameters: object) -> tuple[object, ...]:
    """The first row of a query that always has one."""
    row = connection.execute(query, parameters or None).fetchone()
    if row is None:
        raise psycopg.errors.NoDataFound("no row came back")
    return row
