"""
Send several statements in one round trip.

Runs where the ledger is read and written. Invariant: the statements run in the order in which they were asked, each
with a snapshot of its own, and none after one that has failed. Nothing is sent before all of them are known. Behind a
pooler that gives its sessions to other clients, no statement is prepared: what one client has prepared is missing in
the next session. (It is never another statement there, because names are made of the texts.)

This speaks to libpq, past psycopg's cursors: psycopg's pipelines send each statement by itself and wait after BEGIN,
and took seven times as long for the client and twice as long for the server.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus, TransactionStatus
from psycopg.pq.abc import PGconn, PGresult


class Statement:
    """
    A statement of ours, as libpq takes it: each parameter has a number, and its type is clear from the text.

    :param parameters: their names, in the order of their numbers.
    :param is_prepared: whether Postgres keeps it prepared, where :func:`keep_prepared` allows that.

    >>> ask(connection, Statement("SELECT $1::text", "name"), {"name": "orders"}).rows()
    [('orders',)]
    """

    def __init__(self, text: str, *parameters: str, is_prepared: bool = True) -> None:
        self.text = text.encode()
        self.is_prepared = is_prepared
        self._parameters = parameters

    @cached_property
    def name(self) -> bytes:
        """Under which it is prepared: no other statement has it, in no session."""
        return b"pgonce_" + hashlib.sha256(self.text).hexdigest()[:32].encode()

    def values(self, given: Mapping[str, Any]) -> list[Any]:
        """The values of its parameters, in the order of their numbers."""
        return [given[name] for name in self._parameters]


_BINARY = 1


@dataclass
class _Session:
    """
    What is known of a connection: what was asked and not sent yet, if a round trip is being put together; and what was
    prepared.
    """

    url: str = field(default="", repr=False)
    waiting: list[Asked] | None = None
    prepares: bool = False
    prepared: set[bytes] = field(default_factory=set)


_sessions: WeakKeyDictionary[psycopg.Connection, _Session] = WeakKeyDictionary()


def _session_of(connection: psycopg.Connection) -> _Session:
    return _sessions.get(connection) or _sessions.setdefault(connection, _Session())


# The connection strings by which something was missing that had been prepared: this process prepares no more by them.
_never: set[str] = set()


def keep_prepared(connection: psycopg.Connection, url: str, backend_pid: int) -> None:
    """
    From now on have Postgres keep prepared what is asked, if the session is the server's process that libpq knows.

    :param backend_pid: the process that has begun this transaction, as the server says. The number that a pooler tells
        libpq is made up.
    """
    session = _session_of(connection)
    session.url = url
    session.prepares = backend_pid == connection.info.backend_pid and url not in _never


def ask(connection: psycopg.Connection, statement: Statement, parameters: Mapping[str, Any] | None = None) -> Asked:
    """Send a statement: at once, or with others if a block of :func:`one_trip` is open."""
    values = statement.values(parameters or {})
    dumped = Transformer(connection).dump_sequence(values, [PyFormat.TEXT] * len(values))
    asked, session = Asked(connection, statement, dumped), _session_of(connection)
    if session.waiting is None:
        _send(connection, session, [asked])
    else:
        session.waiting.append(asked)
    return asked


class Asked:
    """A statement that was asked, with its values as libpq takes them; and its answer, once there is one."""

    def __init__(self, connection: psycopg.Connection, statement: Statement, values: Sequence[Any]) -> None:
        self.statement, self.values = statement, values
        self._connection = connection
        self._answer: PGresult | None = None

    def answered(self, answer: PGresult) -> None:
        """Postgres has answered."""
        self._answer = answer

    @property
    def is_answered(self) -> bool:
        """Whether Postgres has answered; not if the statement, or one before it, has failed."""
        return self._answer is not None

    @property
    def tag(self) -> str | None:
        """What Postgres says that it has done."""
        tag = self._answer.command_status if self._answer else None
        return tag.decode() if tag else None

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of the answer. Within :func:`one_trip` they need a round trip of their own."""
        session = _session_of(self._connection)
        if self._answer is None and session.waiting is not None:
            asked, session.waiting = session.waiting, []
            _send(self._connection, session, asked)
        if self._answer is None:
            return []
        transformer = Transformer(self._connection)
        transformer.set_pgresult(self._answer)
        return transformer.load_rows(0, self._answer.ntuples, tuple)

    def row(self) -> dict[str, Any] | None:
        """The one row of the answer, if there is one, by the names of its columns."""
        rows = self.rows()
        if self._answer is None or not rows:
            return None
        names = (self._answer.fname(number) or b"" for number in range(self._answer.nfields))
        return dict(zip((name.decode() for name in names), rows[0], strict=True))

    def one_row(self) -> dict[str, Any]:
        """The row of an answer that always has one."""
        row = self.row()
        assert row is not None  # noqa: S101 (the caller knows)
        return row


_Answered = Callable[[PGresult], None]
# What hears of the answer, and what sends the statement.
_Sent = tuple["_Answered | None", Callable[[], None]]


@contextmanager
def one_trip(connection: psycopg.Connection) -> Iterator[None]:
    """
    Send what the block asks in one round trip; none of it should need another's answer.

    If no error is raised, all of it was done. If the block raises one, nothing was sent; otherwise it is the error of
    the first statement that has failed.
    """
    session = _session_of(connection)
    session.waiting = []
    try:
        yield
        asked = session.waiting
    finally:
        session.waiting = None
    _send(connection, session, asked)


def _send(connection: psycopg.Connection, session: _Session, asked: list[Asked]) -> None:
    pgconn = connection.pgconn
    sent: list[_Sent] = []
    if pgconn.transaction_status == TransactionStatus.IDLE and not connection.autocommit:
        sent.append((None, partial(pgconn.send_query_params, _begin(connection), None)))
    new = set[bytes]()
    for one in asked:
        text, name = one.statement.text, one.statement.name
        if not (session.prepares and one.statement.is_prepared):
            sent.append((one.answered, partial(pgconn.send_query_params, text, one.values, result_format=_BINARY)))
            continue
        if name not in session.prepared and name not in new:
            new.add(name)
            # It stays prepared even if the transaction is rolled back.
            prepared = partial(lambda name, _: session.prepared.add(name), name)
            sent.append((prepared, partial(pgconn.send_prepare, name, text)))
        sent.append((one.answered, partial(pgconn.send_query_prepared, name, one.values, result_format=_BINARY)))
    try:
        _in_one(connection, sent)
    except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement) as error:
        if not session.prepares:
            raise
        # SQL of the user may have deallocated all, in a function of the database. Or a pooler has told libpq the number
        # of a process, and changed the session nevertheless. Another try gets another session.
        _never.add(session.url)
        raise psycopg.OperationalError("A statement that was prepared in this session is gone.") from error


def _begin(connection: psycopg.Connection) -> bytes:
    """The statement that psycopg would send before another one."""
    parts = ["BEGIN"]
    if connection.isolation_level is not None:
        parts.append(f"ISOLATION LEVEL {psycopg.IsolationLevel(connection.isolation_level).name.replace('_', ' ')}")
    # Not READ WRITE, which a reader has left in a pooled session: a standby refuses it in other words than a write.
    if connection.read_only:
        parts.append("READ ONLY")
    if connection.deferrable is not None:
        parts.append("DEFERRABLE" if connection.deferrable else "NOT DEFERRABLE")
    return " ".join(parts).encode()


def _in_one(connection: psycopg.Connection, sent: list[_Sent]) -> None:
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    try:
        for _, send in sent:
            send()
        pgconn.pipeline_sync()
        connection.wait(_answers(pgconn, [answered for answered, _ in sent]))
    except BaseException:
        # It cannot be left if answers were not read, because the wait for them was interrupted.
        with suppress(psycopg.Error):
            pgconn.exit_pipeline_mode()
        raise
    pgconn.exit_pipeline_mode()


def _answers(pgconn: PGconn, sent: list[_Answered | None]) -> PQGen[None]:
    """Read the answers, and behind them that of the end of the round trip; raise the first error."""
    yield from generators.send(pgconn)
    error: psycopg.Error | None = None
    for answered in [*sent, None]:
        try:
            (answer,) = yield from generators.fetch_many(pgconn)
        except psycopg.OperationalError:
            # The server has said why before it has closed the connection.
            if error is None:
                raise
            break
        if answer.status == ExecStatus.FATAL_ERROR:
            error = error or psycopg.errors.error_from_result(answer)
        elif answer.status != ExecStatus.PIPELINE_ABORTED and answered is not None:
            answered(answer)
    if error is not None:
        raise error
