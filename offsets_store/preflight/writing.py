"""
Does the server take rows in the ways in which pgonce sends them?

Runs in the command ``pgonce check``. Invariant: all tables are temporary, or are rolled back.
"""

from __future__ import annotations

import secrets
import struct

import psycopg
from psycopg import sql

from ..ledger.tables import SCHEMA
from .answers import Answer, Holds, Question, one_row
from .places import may_create

_TABLE = "CREATE TEMPORARY TABLE pgonce_rows (id pg_catalog.int8 PRIMARY KEY, name pg_catalog.text) ON COMMIT DROP"
# The signature of binary COPY, no flags and no extension; then a row of two fields; then the trailer.
_ROW = struct.pack("!hiqi1s", 2, 8, 7, 1, b"x")
_BINARY = b"PGCOPY\n\xff\r\n\0" + struct.pack("!ii", 0, 0) + _ROW + struct.pack("!h", -1)
_MERGE_FROM = 150000


def _copy(connection: psycopg.Connection) -> Answer:
    connection.execute(_TABLE)
    with connection.cursor().copy("COPY pg_temp.pgonce_rows (id, name) FROM STDIN (FORMAT binary)") as copy:
        copy.write(_BINARY)
    if one_row(connection, "SELECT id, name FROM pg_temp.pgonce_rows") == (7, "x"):
        return Answer(Holds.YES, "COPY takes binary rows, into a temporary table too")
    return Answer(Holds.NO, "COPY has changed a binary row")


def _upsert(connection: psycopg.Connection) -> Answer:
    connection.execute(_TABLE)
    for name in ("a", "b"):
        connection.execute(
            "INSERT INTO pg_temp.pgonce_rows AS old VALUES (1, %s) "
            "ON CONFLICT (id) DO UPDATE SET name = excluded.name WHERE old.id = excluded.id",
            [name],
        )
    if one_row(connection, "SELECT name FROM pg_temp.pgonce_rows") == ("b",):
        return Answer(Holds.YES, "INSERT ... ON CONFLICT writes by key")
    return Answer(Holds.NO, "INSERT ... ON CONFLICT DO UPDATE has not updated its row")


def _merge(connection: psycopg.Connection) -> Answer:
    if connection.info.server_version < _MERGE_FROM:
        return Answer(
            Holds.WEAKER, "this version has no MERGE: large upserts take INSERT ... ON CONFLICT, which is slower"
        )
    connection.execute(_TABLE)
    try:
        connection.execute(
            "MERGE INTO pg_temp.pgonce_rows AS target USING (VALUES (1::pg_catalog.int8, 'a')) AS source (id, name) "
            "ON target.id = source.id WHEN MATCHED THEN UPDATE SET name = source.name "
            "WHEN NOT MATCHED THEN INSERT (id, name) VALUES (source.id, source.name)"
        )
    except psycopg.errors.FeatureNotSupported:
        return Answer(Holds.WEAKER, "MERGE is refused: large upserts take INSERT ... ON CONFLICT, which is slower")
    return Answer(Holds.YES, "MERGE writes large upserts")


def _staging(connection: psycopg.Connection) -> Answer:
    name = f"pgonce_check_{secrets.token_hex(8)}"
    may_create_schema, may_stage = may_create(connection)
    if not may_create_schema and not may_stage:
        return Answer(
            Holds.NO,
            f"the role may create tables neither in schema {SCHEMA} nor in one of its own",
            "Have an administrator run `pgonce init --role <role>`.",
        )
    schema = SCHEMA if may_stage else name
    if not may_stage:
        connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
    table = sql.Identifier(schema, name)
    connection.execute(sql.SQL("CREATE UNLOGGED TABLE {} (id pg_catalog.int8)").format(table))
    kept = one_row(
        connection, "SELECT c.relpersistence::pg_catalog.text FROM pg_catalog.pg_class AS c WHERE c.relname = %s", name
    )
    if kept != ("u",):
        return Answer(
            Holds.WEAKER, "unlogged tables are ordinary ones here: staging large batches is slower, and no less safe"
        )
    return Answer(Holds.YES, "large batches can be staged in unlogged tables")


QUESTIONS = (
    Question("binary-copy", "Rows are written by binary COPY, and no value changes on its way.", _copy),
    Question("upsert", "Rows are written by key (mode=upsert).", _upsert),
    Question("merge", "Large batches are upserted in one pass.", _merge),
    Question("staging", "Large batches go through staging tables (format pgonce).", _staging),
)
