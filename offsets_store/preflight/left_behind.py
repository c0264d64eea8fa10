"""
Is a table that was rolled back gone?

Runs in the command ``pgonce check``, before anything is created that is not temporary. Invariant: if the server keeps
it, it is dropped.
"""

from __future__ import annotations

import secrets

import psycopg
from psycopg import sql

from .answers import (
    Answer,
    Finding,
    Holds,
    commit_for_the_moment,
    one_row,
    refused,
    rolled_back,
)

_IS_THERE = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"
TRANSACTIONAL_DDL = "transactional-ddl"
PROMISE = "What a batch creates (createTable, new columns, the ledger) is there with its rows, or not at all."


def ask_transactional_ddl(connection: psycopg.Connection) -> Finding:
    """Create a schema, roll back, and look; a connection in autocommit mode."""
    answer = _ask(connection)
    return Finding(TRANSACTIONAL_DDL, PROMISE, answer.holds, answer.says, answer.remedy)


def _ask(connection: psycopg.Connection) -> Answer:
    name = f"pgonce_check_{secrets.token_hex(8)}"
    schema = sql.Identifier(name)
    try:
        with rolled_back(connection):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(schema))
            connection.execute(sql.SQL("CREATE TABLE {} (id pg_catalog.int8)").format(sql.Identifier(name, "t")))
    except psycopg.errors.InsufficientPrivilege:
        return Answer(Holds.UNKNOWN, "the role may not create a schema, so this could not be tried")
    except psycopg.errors.ReadOnlySqlTransaction as error:
        return refused(error)
    if one_row(connection, _IS_THERE, name)[0]:
        commit_for_the_moment(connection, sql.SQL("DROP SCHEMA {} CASCADE").format(schema))
        return Answer(
            Holds.NO, "a schema that was created in a transaction stayed after its ROLLBACK (it is dropped now)"
        )
    return Answer(Holds.YES, "what is created in a transaction goes with its ROLLBACK")
