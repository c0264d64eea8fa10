"""
Read from Postgres's catalogue what the target table is.

Runs in the commit. Invariant: it reads the catalogue again for every batch, because people alter tables under a stream,
and under our own search_path, so that no object of a user's can stand in for Postgres's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from .fit import FIRST_OF_USERS, UserType, read_user_types
from .table_name import NOT_A_NAME, QualifiedName, ResolvedName, not_a_name, resolve_statement, resolved


@dataclass(frozen=True)
class TargetColumn:
    """
    A column of the table: its type without and with its modifier (``numeric``, ``numeric(10,2)``), and both as numbers.

    If the type is a domain, they are those of its base type. ``generated`` says what always makes the value (an
    ``identity`` or an ``expression``), and is empty elsewhere. ``primary_key`` is the column's place in it, from 0.
    ``collation`` is its name as SQL has it, if that is not the one of the type.
    ``user_type`` says more about a type that did not come with Postgres. ``declared`` has the column's number, type and
    modifier as the catalogue has them, where a domain is a type of its own; None for a column that is to be added.
    """

    column_name: str
    base_type: str
    full_type: str
    type_oid: int = 0
    not_null: bool = False
    has_default: bool = False
    generated: str = ""
    primary_key: int | None = None
    user_type: UserType | None = None
    declared: Sequence[int] | None = None
    collation: str | None = None

    @property
    def is_domain(self) -> bool:
        """Whether its type is a domain."""
        return self.declared is not None and self.declared[1] != self.type_oid

    @property
    def compared_as(self) -> sql.Composable:
        """The cast without which Postgres has no operators for the column: that of a domain over an enum."""
        is_enum = self.is_domain and self.user_type is not None and self.user_type.kind == "e"
        return sql.SQL(f"::{self.base_type}" if is_enum else "")

    @property
    def required(self) -> bool:
        """Whether the rows must bring a value."""
        return self.not_null and not self.has_default


@dataclass(frozen=True)
class TargetTable(QualifiedName):
    """
    A table as Postgres's catalogue has it; ``note`` says what this batch has altered, or does not write.

    ``root`` is the oid of the partitioned table at the top, or its own. ``deletes_reach`` are the roots of the tables
    whose rows change when rows of this one are deleted, by ``ON DELETE CASCADE``, ``SET NULL`` or ``SET DEFAULT``.
    ``redirected`` is ``trigger`` if a trigger may put inserted rows into tables that inherit from it, ``hypertable`` if
    TimescaleDB does, and else empty.
    """

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    rules: bool
    row_security: bool
    unsafe_partition: str | None
    columns: tuple[TargetColumn, ...]
    root: int = 0
    deletes_reach: Sequence[int] = ()
    redirected: str = ""
    note: str = ""

    @property
    def is_temporary(self) -> bool:
        """Whether it goes away with the session that made it."""
        return self.persistence == "t"

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The names of its columns, in their order; empty if there is none."""
        places = {column.column_name: column.primary_key for column in self.columns if column.primary_key is not None}
        return tuple(sorted(places, key=lambda name: places[name] or 0))

    def columns_named(self, name: str) -> list[TargetColumn]:
        """The columns of exactly this name; if there are none, those that differ from it only in case."""
        found = self._named_in_any_case.get(name.lower(), [])
        return [column for column in found if column.column_name == name] or found

    # A batch asks for each of its columns, and there may be 1,600: looking through all of them each time took a
    # second.
    @cached_property
    def _named_in_any_case(self) -> dict[str, list[TargetColumn]]:
        found: dict[str, list[TargetColumn]] = {}
        for column in self.columns:
            found.setdefault(column.column_name.lower(), []).append(column)
        return found


def look_up_table(connection: psycopg.Connection, table: str) -> tuple[ResolvedName, TargetTable | None]:
    """Like :func:`resolve_table`, and the table as the catalogue has it now, or None if there is none."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(look_up_statements(table), prepare=False)
            found, described = looked_up(cursor, table)
    except NOT_A_NAME as error:
        raise not_a_name([table], error) from error
    return found, described and with_user_types(connection, described)


def look_up_statements(table: str) -> sql.Composed:
    """One text that asks for all that :func:`looked_up` reads."""
    return sql.SQL("; ").join([resolve_statement(table), search_path.under_ours(sql.SQL(_DESCRIBE))])


def looked_up(cursor: psycopg.Cursor[Any], table: str) -> tuple[ResolvedName, TargetTable | None]:
    """Read the answers; the cursor is left at the next one, that of the statement that restores the search_path."""
    (answer,) = cursor.fetchall()
    found = resolved(answer, table)
    for _ in range(1 + search_path.ANSWERS_BEFORE):
        cursor.nextset()
    names = [column.name for column in cursor.description or ()]
    described = _described([dict(zip(names, row, strict=True)) for row in cursor.fetchall()])
    cursor.nextset()
    return found, described


def with_user_types(connection: psycopg.Connection, table: TargetTable) -> TargetTable:
    """The table, knowing the types that did not come with Postgres; if it has none, Postgres is not asked."""
    oids = [column.type_oid for column in table.columns if column.type_oid >= FIRST_OF_USERS]
    if not oids:
        return table
    known = read_user_types(connection, oids)
    return replace(table, columns=tuple(replace(c, user_type=known.get(c.type_oid)) for c in table.columns))


UNSAFE_PARTITION = """
SELECT t.relid::pg_catalog.regclass::text
FROM pg_catalog.pg_partition_tree({oid}) AS t JOIN pg_catalog.pg_class AS p ON p.oid = t.relid
WHERE p.relpersistence <> 'p' OR p.relkind NOT IN ('r', 'p') LIMIT 1
"""

# The tables that foreign keys with an action reach from this one, however far: a row that is deleted deletes others or
# updates them, and one that is updated can only update others. They are found by the triggers of the referenced table,
# which have an index.
_DELETES_REACH = """
CASE WHEN c.relhastriggers THEN ARRAY(
    WITH RECURSIVE action AS (
        SELECT f.conrelid, f.confdeltype = 'c' AS deletes
        FROM pg_catalog.pg_trigger AS t JOIN pg_catalog.pg_constraint AS f ON f.oid = t.tgconstraint
        WHERE t.tgrelid = c.oid AND f.contype = 'f' AND f.confrelid = c.oid AND f.confdeltype IN ('c', 'n', 'd')
        UNION
        SELECT f.conrelid, a.deletes AND f.confdeltype = 'c'
        FROM action AS a JOIN pg_catalog.pg_trigger AS t ON t.tgrelid = a.conrelid
        JOIN pg_catalog.pg_constraint AS f ON f.oid = t.tgconstraint AND f.contype = 'f' AND f.confrelid = a.conrelid
        WHERE (a.deletes AND f.confdeltype IN ('c', 'n', 'd')) OR (NOT a.deletes AND f.confupdtype IN ('c', 'n', 'd'))
    )
    SELECT DISTINCT coalesce(pg_catalog.pg_partition_root(conrelid), conrelid)::oid FROM action
) ELSE '{{}}'::oid[] END
"""

# Chunks of a hypertable inherit from it. A row trigger (1) before (2) an insert (4) may insert the row elsewhere.
_REDIRECTED = """
CASE WHEN c.relkind <> 'r' OR NOT c.relhassubclass THEN ''
WHEN EXISTS (
    SELECT FROM pg_catalog.pg_inherits AS i JOIN pg_catalog.pg_class AS h ON h.oid = i.inhrelid
    JOIN pg_catalog.pg_namespace AS s ON s.oid = h.relnamespace
    WHERE i.inhparent = c.oid AND s.nspname = '_timescaledb_internal') THEN 'hypertable'
WHEN EXISTS (SELECT FROM pg_catalog.pg_inherits AS i WHERE i.inhparent = c.oid) AND EXISTS (
    SELECT FROM pg_catalog.pg_trigger AS t
    WHERE t.tgrelid = c.oid AND NOT t.tgisinternal AND t.tgenabled <> 'D' AND t.tgtype & 7 = 7) THEN 'trigger'
ELSE '' END
"""

# Domains are resolved to their base types, however deep: a domain has its base type's binary form (and COPY runs its
# checks), while an explicit cast to a domain would cut text.
_DESCRIBE = f"""
WITH RECURSIVE resolved AS (
    SELECT a.attrelid, a.attnum, a.atttypid AS type_oid, a.atttypmod AS typmod, a.attnotnull AS not_null
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = current_setting('pgonce.target')::oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT r.attrelid, r.attnum, d.typbasetype, d.typtypmod, r.not_null OR d.typnotnull
    FROM resolved AS r JOIN pg_catalog.pg_type AS d ON d.oid = r.type_oid AND d.typtype = 'd'
)
SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.relpersistence::text AS persistence,
       -- relhasrules stays true for a while after the last rule was dropped.
       EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN') AS rules,
       pg_catalog.row_security_active(c.oid) AS row_security,
       ({UNSAFE_PARTITION.format(oid="c.oid")}) AS unsafe_partition,
       coalesce(pg_catalog.pg_partition_root(c.oid), c.oid)::oid AS root,
       {_DELETES_REACH.format()} AS deletes_reach,
       {_REDIRECTED} AS redirected,
       a.attname::text AS column_name,
       pg_catalog.format_type(r.type_oid, NULL) AS base_type,
       pg_catalog.format_type(r.type_oid, r.typmod) AS full_type,
       r.type_oid, ARRAY[a.attnum, a.atttypid::int8, a.atttypmod] AS declared,
       r.not_null,
       a.atthasdef OR a.attidentity <> '' OR y.typdefault IS NOT NULL AS has_default,
       CASE WHEN a.attidentity = 'a' THEN 'identity' WHEN a.attgenerated <> '' THEN 'expression' ELSE '' END
           AS generated,
       (SELECT l.collnamespace::regnamespace || '.' || quote_ident(l.collname) FROM pg_catalog.pg_collation AS l
        WHERE l.oid = a.attcollation AND l.oid <> y.typcollation) AS collation,
       (SELECT array_position(i.indkey::int2[], a.attnum) FROM pg_catalog.pg_index AS i
        WHERE i.indrelid = c.oid AND i.indisprimary
        AND array_position(i.indkey::int2[], a.attnum) < i.indnkeyatts) AS primary_key
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_catalog.pg_type AS y ON y.oid = a.atttypid
LEFT JOIN resolved AS r ON r.attnum = a.attnum
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_type AS y WHERE y.oid = r.type_oid AND y.typtype = 'd')
WHERE c.oid = current_setting('pgonce.target')::oid
ORDER BY a.attnum
"""


def _described(rows: Sequence[dict[str, Any]]) -> TargetTable | None:
    if not rows:
        return None
    of_table = {
        field.name: rows[0][field.name] for field in fields(TargetTable) if field.name not in ("columns", "note")
    }
    columns = (
        TargetColumn(**{field.name: row[field.name] for field in fields(TargetColumn) if field.name in row})
        for row in rows
        if row["column_name"] is not None
    )
    return TargetTable(**of_table, columns=tuple(columns))


def parents_first(connection: psycopg.Connection, tables: Sequence[ResolvedName]) -> list[int]:
    """
    The numbers of the tables, each after those to which its foreign keys refer, as far as there is such an order.

    The user's search_path is in force, and is so afterwards.
    """
    oids = [table.oid or 0 for table in tables]
    refers = set(search_path.execute_in_tx(connection, sql.SQL(_REFERS).format(oids=oids)).fetchall())
    left, ordered = list(range(len(oids))), []
    while left:
        others = {oids[number] for number in left}
        free = (n for n in left if not any((oids[n], other) in refers for other in others - {oids[n]}))
        ordered.append(next(free, left[0]))
        left.remove(ordered[-1])
    return ordered


_REFERS = """
SELECT f.conrelid::int8, f.confrelid::int8 FROM pg_constraint AS f
WHERE f.contype = 'f' AND f.conrelid = ANY ({oids}::oid[]) AND f.confrelid = ANY ({oids}::oid[])
"""
