"""
What does Postgres's catalogue say of the target table?

Runs in the commit. Invariant: names are resolved by Postgres's own rules, and read anew for every batch, because people
alter tables under a stream.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from offsets_store.errors import NOTHING
from sink.errors import TargetError


@dataclass(frozen=True)
class TargetColumn:
    """A column of the table: its type without and with its modifier (``numeric``, ``numeric(10,2)``)."""

    column_name: str
    base_type: str
    full_type: str
    required: bool
    always_generated: bool


@dataclass(frozen=True)
class TargetTable:
    """A table as Postgres's catalogue has it."""

    schema: str
    name: str
    kind: str
    persistence: str
    rules: bool
    row_security: bool
    unsafe_partition: str | None
    columns: tuple[TargetColumn, ...]

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name, quoted."""
        return sql.Identifier(self.schema, self.name)

    @property
    def qualified_name(self) -> str:
        """Its qualified name as people write it; the default sink name."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class ResolvedName:
    """A table's schema and name, and its oid where it exists."""

    schema: str
    name: str
    oid: int | None

    @property
    def qualified_name(self) -> str:
        """The name as people write it; the default sink name."""
        return f"{self.schema}.{self.name}"


def resolve_table(connection: psycopg.Connection, table: str) -> ResolvedName:
    """
    The table behind what the user wrote, by Postgres's own rules for quotes, case and search path.

    A table that does not exist yet gets the schema in which CREATE TABLE would put it.
    """
    try:
        found = connection.execute(_RESOLVE, {"table": table}).fetchone()
    except (psycopg.errors.InvalidName, psycopg.errors.SyntaxError, psycopg.errors.FeatureNotSupported):
        found = None
    if found is None or found[0] is None or found[1] is None:
        raise TargetError(
            "BAD_TABLE_NAME",
            f"table={table!r} is not a table's name.",
            NOTHING,
            "Write table or schema.table, and put names with capitals or odd characters in double quotes: "
            "'app.\"Orders\"'.",
        )
    return ResolvedName(*found)


# An absent table cannot be looked up, so its name is split the way to_regclass would split it.
_RESOLVE = """
SELECT coalesce(n.nspname, CASE cardinality(p) WHEN 1 THEN current_schema() WHEN 2 THEN p[1] END),
       coalesce(c.relname, CASE cardinality(p) WHEN 1 THEN p[1] WHEN 2 THEN p[2] END), c.oid
FROM (SELECT pg_catalog.parse_ident(%(table)s) AS p, pg_catalog.to_regclass(%(table)s) AS oid) AS t
LEFT JOIN pg_catalog.pg_class AS c ON c.oid = t.oid
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
"""

# Domains are resolved to what they are made of, however deep: a domain's binary form is its base type's (COPY runs
# its checks), while an explicit cast to a domain would cut text.
_DESCRIBE = """
WITH RECURSIVE resolved AS (
    SELECT a.attrelid, a.attnum, a.atttypid AS type_oid, a.atttypmod AS typmod
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = %(oid)s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT r.attrelid, r.attnum, d.typbasetype, d.typtypmod
    FROM resolved AS r JOIN pg_catalog.pg_type AS d ON d.oid = r.type_oid AND d.typtype = 'd'
)
SELECT n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.relpersistence::text AS persistence,
       -- relhasrules stays true for a while after the last rule was dropped.
       EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN') AS rules,
       pg_catalog.row_security_active(c.oid) AS row_security,
       (SELECT t.relid::pg_catalog.regclass::text
        FROM pg_catalog.pg_partition_tree(c.oid) AS t JOIN pg_catalog.pg_class AS p ON p.oid = t.relid
        WHERE p.relpersistence <> 'p' OR p.relkind NOT IN ('r', 'p') LIMIT 1) AS unsafe_partition,
       a.attname::text AS column_name,
       pg_catalog.format_type(r.type_oid, NULL) AS base_type,
       pg_catalog.format_type(r.type_oid, r.typmod) AS full_type,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required,
       a.attidentity = 'a' OR a.attgenerated <> '' AS always_generated
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN resolved AS r ON r.attnum = a.attnum
    AND NOT EXISTS (SELECT FROM pg_catalog.pg_type AS y WHERE y.oid = r.type_oid AND y.typtype = 'd')
WHERE c.oid = %(oid)s
ORDER BY a.attnum
"""


def describe_table(connection: psycopg.Connection, oid: int) -> TargetTable:
    """The table as the catalogue has it now. Read for every batch: people alter tables under a stream."""
    with connection.cursor(row_factory=dict_row) as cursor:
        rows = cursor.execute(_DESCRIBE, {"oid": oid}).fetchall()
    of_table = {field.name: rows[0][field.name] for field in fields(TargetTable) if field.name != "columns"}
    columns = (
        TargetColumn(**{field.name: row[field.name] for field in fields(TargetColumn)})
        for row in rows
        if row["column_name"] is not None
    )
    return TargetTable(**of_table, columns=tuple(columns))
