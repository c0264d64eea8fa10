"""
Ask a server whether the promises of pgonce would hold there.

Runs in the command ``pgonce check``, before the first query is started. Invariant: each question is tried on the server
itself, and nothing is left behind there.
"""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
from typing_extensions import Self

from ..postgres.connect import connect
from ..postgres.translate import is_lost_connection, is_statement_pooling, ledger_error
from . import role, server, transactions
from .answers import Finding, Holds, Question, asked


def check_server(url: str, *more: Question) -> list[Finding]:
    """
    Ask all questions, and ``more``; what could not be asked for an earlier answer is left out.

    :raises ConnectError: if the server cannot be reached, or stays unavailable.
    """
    with _Asking(url) as asking:
        try:
            return list(_findings(asking, more))
        except psycopg.Error as error:
            if is_statement_pooling(error):
                return [server.statement_pooling(error)]
            raise ledger_error(error, "looking at the server") from error


def _findings(asking: _Asking, more: tuple[Question, ...]) -> Iterator[Finding]:
    found = [asking.ask(question) for question in (*server.QUESTIONS, *role.QUESTIONS)]
    yield from found
    if not any(finding.name == "primary" and finding.holds is Holds.NO for finding in found):
        # A server that takes no writes cannot be asked what they would do.
        yield from (asking.ask(question) for question in (*transactions.questions(asking.another), *more))


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
        """Open another session."""
        return connect(self.url, autocommit=True)

    def ask(self, question: Question) -> Finding:
        """The answer; a server that ends the session each time does not do what is asked, and the others go on."""
        for _ in range(2):
            try:
                return asked(self._connection, question)
            except psycopg.Error as error:
                if not is_lost_connection(error) or is_statement_pooling(error):
                    raise
                self._connection.close()
                self._connection = self.another()
        return Finding(
            question.name,
            question.promise,
            Holds.NO,
            "the server ended the session twice when it was asked for this",
            "",
        )
