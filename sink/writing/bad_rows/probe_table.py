"""
Which table, like the target, do rows have to fit into to be good ones, and which of their columns need to be tried?

Runs in the commit, only once Postgres has refused rows. Invariant: the table is temporary; it has the columns that the
rows bring, with the target's types, NOT NULL and CHECKs, and nothing that depends on other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ..checked_table import ColumnPlan
from ..fitting.fit import (
    Fit,
)
from ..refused_values import Written

PROBE = "pgonce_probe"
"""The name of the table; Postgres's messages have it."""


@dataclass(frozen=True)
class ProbeTable:
    """
    The table, and the ``columns`` of the rows that may be refused.

    ``has_row_triggers`` and ``has_expressions`` are about the target: triggers that may change a row before it is
    inserted, and CHECKs or generated columns, which compute something.
    """

    columns: Sequence[ColumnPlan]
    has_row_triggers: bool
    has_expressions: bool
    identifier: ClassVar[sql.Identifier] = sql.Identifier("pg_temp", PROBE)


def made_in_tx(connection: psycopg.Connection, written: Written) -> ProbeTable:
    """
    Create it, for rows that were to be written so.

    :raises psycopg.Error: if the role may not read the target, or may not create temporary tables.
    """
    table, soft = written.table, written.changes and written.changes.soft_column
    columns = [column for column in written.plan if column.target != soft]
    create = sql.SQL("CREATE TEMPORARY TABLE {} (LIKE {} INCLUDING CONSTRAINTS INCLUDING GENERATED) ON COMMIT DROP")
    connection.execute(create.format(ProbeTable.identifier, table.identifier))
    _drop_others(connection, {column.target for column in columns})
    cursor = connection.cursor()
    search_path.execute_in_tx(cursor, sql.SQL(_DEMANDING))
    demanding = {name for (name,) in cursor.fetchall()}
    # The others take every value, so they need not be written.
    columns = [column for column in columns if column.target in demanding or may_refuse_value(column)]
    search_path.execute_in_tx(cursor, sql.SQL(_ABOUT_ROWS).format(table.oid))
    has_triggers, has_expressions = cursor.fetchone() or (True, True)
    return ProbeTable(columns, has_triggers, has_expressions)


def may_refuse_value(column: ColumnPlan) -> bool:
    """Whether the type of a column may refuse a value: not if the value has just this type, without a modifier."""
    return column.fitting.fit is not Fit.EXACT or "(" in column.full_type


def _drop_others(connection: psycopg.Connection, brought: set[str]) -> None:
    """Drop the columns that the rows do not bring."""
    # They have a default in the target, or are set by a soft delete: nothing is known here of what a CHECK, a generated
    # column or a domain says of them, so these go too.
    cursor = connection.cursor()
    search_path.execute_in_tx(cursor, sql.SQL(_STORED))
    drop = sql.SQL("DROP COLUMN IF EXISTS {} CASCADE")
    gone = [drop.format(sql.Identifier(name)) for (name,) in cursor.fetchall() if name not in brought]
    if gone:
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(ProbeTable.identifier, sql.SQL(", ").join(gone)))


_STORED = """
SELECT attname FROM pg_attribute
WHERE attrelid = 'pg_temp.pgonce_probe'::regclass AND attnum > 0 AND attgenerated = '' AND NOT attisdropped
"""
# Columns on which a constraint may depend: NOT NULL, a CHECK, a domain's. A CHECK of the whole row, and one of a column
# that is generated, may depend on any.
_DEMANDING = """
WITH checks AS (
    SELECT k.attnum FROM pg_constraint AS c CROSS JOIN unnest(coalesce(nullif(c.conkey, '{}'), '{0}')) AS k(attnum)
    WHERE c.conrelid = 'pg_temp.pgonce_probe'::regclass AND c.contype = 'c'
)
SELECT a.attname FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
WHERE a.attrelid = 'pg_temp.pgonce_probe'::regclass AND a.attnum > 0 AND NOT a.attisdropped AND (
    a.attnotnull OR t.typtype = 'd' OR a.attnum IN (SELECT attnum FROM checks)
    OR EXISTS (SELECT FROM checks WHERE attnum = 0)
    OR EXISTS (SELECT FROM pg_attribute AS g WHERE g.attrelid = a.attrelid AND g.attgenerated <> ''))
"""
# 7: a trigger for each row (1), before (2), insert (4). Of a partitioned table, those of its partitions count too.
_ABOUT_ROWS = """
SELECT EXISTS (
    SELECT FROM pg_trigger
    WHERE tgrelid IN (SELECT {0} UNION ALL SELECT relid FROM pg_partition_tree({0}))
    AND NOT tgisinternal AND tgtype & 7 = 7),
    EXISTS (SELECT FROM pg_constraint WHERE conrelid = {0} AND contype = 'c')
    OR EXISTS (SELECT FROM pg_attribute WHERE attrelid = {0} AND attgenerated <> '')
"""
