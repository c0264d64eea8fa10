"""
Is a transaction whole here, and does the server say what became of it?

Runs in the command ``pgonce check``. Invariant: all tables are temporary.
"""

from __future__ import annotations

import psycopg

from .answers import Answer, Holds, Question, one_row

_XID = "SELECT pg_catalog.pg_current_xact_id()::pg_catalog.text"
_PARENT_AND_CHILD = """
CREATE TEMPORARY TABLE pgonce_parent (id pg_catalog.int8 PRIMARY KEY) ON COMMIT DROP;
CREATE TEMPORARY TABLE pgonce_child (
    id pg_catalog.int8 REFERENCES pg_temp.pgonce_parent (id) DEFERRABLE INITIALLY DEFERRED
) ON COMMIT DROP;
INSERT INTO pg_temp.pgonce_child VALUES (1)
"""
_IMMEDIATE = "SET CONSTRAINTS ALL IMMEDIATE"


def _identity(connection: psycopg.Connection) -> Answer:
    first, second = one_row(connection, _XID), one_row(connection, _XID)
    connection.execute("ROLLBACK")
    connection.execute("BEGIN")
    third = one_row(connection, _XID)
    if first == second != third:
        return Answer(Holds.YES, "each transaction has a number of its own (pg_current_xact_id)")
    return Answer(Holds.NO, "pg_current_xact_id does not tell one transaction from the next")


def _failed_commit(connection: psycopg.Connection) -> Answer:
    try:
        connection.execute("SELECT 1/0")
    except psycopg.errors.DivisionByZero:
        tag = connection.execute("COMMIT").statusmessage
        connection.execute("BEGIN")
        if tag == "ROLLBACK":
            return Answer(Holds.YES, "COMMIT of a failed transaction answers ROLLBACK")
        return Answer(Holds.NO, f"COMMIT of a failed transaction answers {tag}")
    return Answer(Holds.NO, "a division by zero is no error here")


def _savepoints(connection: psycopg.Connection) -> Answer:
    connection.execute(
        "CREATE TEMPORARY TABLE pgonce_points (id pg_catalog.int8) ON COMMIT DROP; "
        "INSERT INTO pg_temp.pgonce_points VALUES (1); SAVEPOINT pgonce_point; "
        "INSERT INTO pg_temp.pgonce_points VALUES (2); ROLLBACK TO SAVEPOINT pgonce_point; "
        "RELEASE SAVEPOINT pgonce_point"
    )
    if one_row(connection, "SELECT pg_catalog.count(*) FROM pg_temp.pgonce_points") == (1,):
        return Answer(Holds.YES, "a savepoint takes back what came after it, and nothing else")
    return Answer(Holds.NO, "ROLLBACK TO SAVEPOINT did not take back what came after the savepoint")


def _deferred(connection: psycopg.Connection) -> Answer:
    # If the key were checked at once, this would be refused.
    connection.execute(_PARENT_AND_CHILD)
    try:
        connection.execute(_IMMEDIATE)
    except psycopg.errors.ForeignKeyViolation:
        return Answer(Holds.YES, "a deferred foreign key is checked at the end of its transaction")
    return Answer(Holds.NO, "a deferred foreign key is not checked at all")


def _isolation(connection: psycopg.Connection) -> Answer:
    asked, real = one_row(
        connection,
        "SELECT pg_catalog.current_setting('default_transaction_isolation'), "
        "pg_catalog.current_setting('transaction_isolation')",
    )
    if asked == real == "read committed":
        return Answer(Holds.YES, "transactions are READ COMMITTED, unless somebody asks for more")
    return Answer(
        Holds.WEAKER,
        f"default_transaction_isolation is {asked}, and transactions are {real}: commits that meet are tried again "
        "more often, and onlyNewer with deletes and startOver are refused",
        "Set it to read committed for this role or database.",
    )


QUESTIONS = (
    Question("transaction-id", "A COMMIT or ROLLBACK by a function of yours is noticed at once.", _identity),
    Question("failed-commit", "A transaction that has failed is never taken for a committed one.", _failed_commit),
    Question("savepoints", "A value that is refused is named, or its row is put aside (deadLetters).", _savepoints),
    Question(
        "deferred-key",
        "The SQL of a function of yours cannot commit rows without their offsets (transactional_batch).",
        _deferred,
    ),
    Question("isolation", "Commits see what others have committed while they waited for a lock.", _isolation),
)
