"""
Questions about transactions: their deferred keys, what they see, and locks between two sessions.

Runs in the command ``pgonce check``. It tries what a setting, a pooler, or a database that only speaks Postgres's
protocol can break. Invariant: no wait is without a bound, advisory locks have a key that no query uses, and the one
table that has to be committed for this is dropped again.
"""

from __future__ import annotations

import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from psycopg import sql

from pgonce.offsets_store.ledger import STAGING_SCHEMA
from pgonce.offsets_store.ledger.privileges import may_create

from .answers import BEGIN, Answer, Holds, Question, commit_for_the_moment, one_row

_PARENT_AND_CHILD = """
CREATE TEMPORARY TABLE pgonce_parent (id pg_catalog.int8 PRIMARY KEY) ON COMMIT DROP;
CREATE TEMPORARY TABLE pgonce_child (
    id pg_catalog.int8 REFERENCES pg_temp.pgonce_parent (id) DEFERRABLE INITIALLY DEFERRED
) ON COMMIT DROP;
INSERT INTO pg_temp.pgonce_child VALUES (1)
"""
_IMMEDIATE = "SET CONSTRAINTS ALL IMMEDIATE"


_PATIENCE_SECONDS = 10.0
_ADVISORY = "SELECT pg_catalog.pg_advisory_xact_lock({})"
_BOUND = "SET LOCAL lock_timeout = '200ms'"

OpenSession = Callable[[], psycopg.Connection]


class NoSecondSessionError(Exception):
    """No second session was available, or it did not come back from its wait."""


_NO_SECOND = Answer(
    Holds.WEAKER,
    "a second session was not available in time, or lock_timeout is ignored",
    "Give the pooler at least two sessions for this database and user: a commit that waits for a lock opens a second "
    "session to find out who holds it.",
)
_NO_PLACE = Answer(
    Holds.UNKNOWN,
    "the role may not create a table that another session can see, so this could not be tried",
)


def _deferred(connection: psycopg.Connection) -> Answer:
    # If the key were checked at once, this would be refused.
    connection.execute(_PARENT_AND_CHILD)
    try:
        connection.execute(_IMMEDIATE)
    except psycopg.errors.ForeignKeyViolation:
        return Answer(Holds.YES, "a deferred foreign key is checked at the end of its transaction")
    return Answer(Holds.NO, "a deferred foreign key is not checked at all")


def questions(another: OpenSession) -> tuple[Question, ...]:
    """
    All questions.

    :param another: opens a second session, by the same url.
    """

    def bounded(ask: Callable[[psycopg.Connection, psycopg.Connection], Answer]) -> Callable[..., Answer]:
        def with_a_second(connection: psycopg.Connection) -> Answer:
            try:
                with _second_session(another) as second:
                    return ask(connection, second)
            except NoSecondSessionError:
                return _NO_SECOND

        return with_a_second

    return (
        Question(
            "deferred-key",
            "The SQL in your function cannot commit rows without their offsets (transactional_batch).",
            _deferred,
        ),
        Question("locks", "Two new queries of one table always notice each other.", bounded(_advisory)),
        Question("fresh-reads", "A commit sees what was committed while it waited.", bounded(_fresh_reads)),
    )


@contextmanager
def _second_session(another: OpenSession) -> Iterator[psycopg.Connection]:
    with another() as second:
        hang_up = threading.Timer(_PATIENCE_SECONDS, _cut, [second])
        hang_up.start()
        try:
            second.execute(BEGIN)
            second.execute(_BOUND)
            yield second
        except psycopg.OperationalError as error:
            # Only a line that was cut has no SQLSTATE, and the first session is not cut here.
            if error.sqlstate is None and second.broken:
                raise NoSecondSessionError from None
            raise
        finally:
            hang_up.cancel()


def _advisory(connection: psycopg.Connection, second: psycopg.Connection) -> Answer:
    take = _ADVISORY.format(secrets.randbits(62))
    one_row(connection, take)
    try:
        one_row(second, take)
    except psycopg.errors.LockNotAvailable:
        return Answer(Holds.YES, "an advisory lock keeps another session out, and lock_timeout ends the wait")
    return Answer(Holds.NO, "two sessions hold one advisory lock at the same time: it locks nothing")


def _fresh_reads(connection: psycopg.Connection, second: psycopg.Connection) -> Answer:
    with _shared_table(connection) as table:
        if table is None:
            return _NO_PLACE
        read = sql.SQL("SELECT n FROM {} WHERE id = 1").format(table)
        before = second.execute(read).fetchone()
        commit_for_the_moment(connection, sql.SQL("UPDATE {} SET n = n + 1").format(table))
        after = second.execute(read).fetchone()
        second.execute("ROLLBACK")
    if (before, after) == ((0,), (1,)):
        return Answer(Holds.YES, "each statement sees what was committed before it")
    return Answer(
        Holds.NO,
        "transactions that ask for READ COMMITTED work on a snapshot: two new queries of one table that start at the "
        "same time may not notice each other",
        "Switch on real READ COMMITTED in the server.",
    )


@contextmanager
def _shared_table(connection: psycopg.Connection) -> Iterator[sql.Identifier | None]:
    """A committed table with one row, until the end of the block; None if there is no place for one."""
    schema = name = f"pgonce_check_{secrets.token_hex(8)}"
    may_create_schema, may_stage = may_create(connection)
    connection.execute("ROLLBACK")
    if not may_create_schema and not may_stage:
        yield None
        return
    create = []
    if may_create_schema:
        create = [sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema))]
        drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema))
    else:
        schema = STAGING_SCHEMA
        drop = sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name))
    table = sql.Identifier(schema, name)
    create.append(sql.SQL("CREATE TABLE {} (id pg_catalog.int8 PRIMARY KEY, n pg_catalog.int8)").format(table))
    create.append(sql.SQL("INSERT INTO {} VALUES (1, 0)").format(table))
    try:
        commit_for_the_moment(connection, *create)
        yield table
    finally:
        if not connection.closed:
            connection.execute("ROLLBACK")
            commit_for_the_moment(connection, drop)


def _cut(connection: psycopg.Connection) -> None:
    with socket.socket(fileno=connection.fileno()) as line:
        line.shutdown(socket.SHUT_RDWR)
        line.detach()
