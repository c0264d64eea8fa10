"""
May an error of Postgres be about the values of one row?

Pure, but for one look at the catalogue; runs in the commit. Invariant: whatever is not on the list stops the batch, as
it does without dead letters: a full disk, a missing table, a lock, a privilege, and what a trigger says of another
table concern every row.
"""

from __future__ import annotations

from enum import Enum

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres import search_path

from ..table.catalogue import TargetTable
from .bad_row import RowsRefusedError


class Kind(Enum):
    """What an error may be about."""

    VALUE = "a value that the type of its column does not take"
    CONSTRAINT = "a row that a constraint of a table refuses"


# A sequence is used up; our own encoding is wrong. Neither has to do with a row.
_OF_EVERY_ROW = frozenset({"2200H", "22P03", "22P04"})
NOT_NULL, CHECK = "23502", "23514"
UNIQUE, FOREIGN_KEY, EXCLUSION = "23505", "23503", "23P01"
_CONSTRAINTS = frozenset({NOT_NULL, CHECK, UNIQUE, FOREIGN_KEY, EXCLUSION})


def kind_of(error: BaseException) -> Kind | None:
    """
    What an error may be about, as far as it says so itself; None if it is not about a row.

    A value that is refused is not enough: Postgres names no table then, so that a trigger may have raised it, and the
    row has to be found among those of the batch.
    """
    if not isinstance(error, psycopg.Error):
        return None
    state, diag = error.sqlstate or "", error.diag
    if state.startswith("22"):
        return None if state in _OF_EVERY_ROW else Kind.VALUE
    if state in (NOT_NULL, CHECK) and diag.datatype_name:
        # The constraint of a domain.
        return Kind.VALUE
    # Without a constraint, 23514 says that a partition is missing.
    named = diag.column_name if state == NOT_NULL else diag.constraint_name
    return Kind.CONSTRAINT if state in _CONSTRAINTS and diag.table_name and named else None


OF_KEYS = ("NULL_KEYS", "NULL_ORDER")
"""Errors of ours about rows that lack what writing by key needs."""


def may_be_a_rows(error: BaseException) -> bool:
    """Whether an error may be about the values of one row."""
    if isinstance(error, RowsRefusedError):
        return True
    return kind_of(error) is not None or (isinstance(error, TargetError) and error.code in OF_KEYS)


def is_of_target(connection: psycopg.Connection, table: TargetTable, error: psycopg.Error) -> bool:
    """Whether the table that an error names is the target, or one of its partitions."""
    named = error.diag.schema_name, error.diag.table_name
    if named == (table.schema, table.name):
        return True
    if table.kind != "p":
        return False
    cursor = connection.cursor()
    search_path.execute_in_tx(cursor, sql.SQL(_IS_PARTITION).format(table.oid, *map(sql.Literal, named)))
    return cursor.fetchone() is not None


_IS_PARTITION = """
SELECT FROM pg_partition_tree({}) AS p JOIN pg_class AS c ON c.oid = p.relid
WHERE c.relnamespace::regnamespace::text = quote_ident({}) AND c.relname = {}
"""
