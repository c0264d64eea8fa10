"""
Would the promises of pgonce hold on this server?

Runs in the command ``pgonce check``, before the first query is started. Invariant: each question is tried on the server
itself, and nothing is left behind there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
from typing_extensions import Self

from ..postgres.connect import connect
from ..postgres.translate import is_lost_connection, is_statement_pooling, ledger_error
from . import durability, locking, pooling, role, server, transactions, writing
from .answers import Finding, Holds, Question, asked
from .left_behind import PROMISE, TRANSACTIONAL_DDL, ask_transactional_ddl


def check_server(url: str, *more: Question) -> list[Finding]:
    """
    Ask all questions, and ``more``; what could not be asked for an earlier answer is left out.

    :raises ConnectError: if the server cannot be reached, or stays away.
    """
    with _Asking(url) as asking:
        try:
            return list(_findings(asking, more))
        except psycopg.Error as error:
            if is_statement_pooling(error):
                return [pooling.statement_pooling(error)]
            raise ledger_error(error, "looking at the server") from error


class _Asking:
    """A connection to the server, which is made again if a question ends its session."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._connection = self.another()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def another(self) -> psycopg.Connection:
        """A session of its own."""
        return connect(self.url, autocommit=True)

    def ask(self, question: Question) -> Finding:
        """The answer to one question."""
        return self.try_twice(question.name, question.promise, lambda connection: asked(connection, question))

    def try_twice(self, name: str, promise: str, ask: Callable[[psycopg.Connection], Finding]) -> Finding:
        """The answer; a server that ends the session each time does not do what is asked, and the others go on."""
        for _ in range(2):
            try:
                return ask(self._connection)
            except psycopg.Error as error:
                if not is_lost_connection(error) or is_statement_pooling(error):
                    raise
                self._connection.close()
                self._connection = self.another()
        return Finding(name, promise, Holds.NO, "the server ended the session twice when it was asked for this", "")


def _findings(asking: _Asking, more: tuple[Question, ...]) -> Iterator[Finding]:
    found = [asking.ask(question) for question in (*server.QUESTIONS, *pooling.QUESTIONS)]
    yield from found
    yield from (asking.ask(question) for question in (*durability.QUESTIONS, *role.QUESTIONS[1:]))
    if any(finding.name == "primary" and finding.holds is Holds.NO for finding in found):
        # It takes no writes, so it cannot be asked what they would do.
        return
    ddl = asking.try_twice(TRANSACTIONAL_DDL, PROMISE, ask_transactional_ddl)
    yield ddl
    if ddl.holds is not Holds.NO:
        # Both create what is not temporary.
        yield from (asking.ask(question) for question in (role.QUESTIONS[0], writing.QUESTIONS[-1]))
    rest = (*transactions.QUESTIONS, *locking.questions(asking.another), *writing.QUESTIONS[:-1])
    yield from (asking.ask(question) for question in (*rest, *more))
