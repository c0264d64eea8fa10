"""
What does Postgres's catalogue say about the target table?

Runs in the commit. Invariant: names are resolved by Postgres's own rules and the user's search_path, again for every
batch, because people alter tables under a stream; the catalogue itself is read under our search_path.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.postgres import search_path
from pgonce.sink.target.fitting.user_types import FIRST_OF_USERS, UserType, read_user_types

TEMPORARY = "pg_temp"
"""An alias: the session's own schema for temporary tables has a number, and is made with the first of them."""


@dataclass(frozen=True)
class TargetColumn:
    """
    A column of the table: its type without and with its modifier (``numeric``, ``numeric(10,2)``), and both as numbers.

    If the type is a domain, they are those of its base type. ``primary_key`` is the column's place in it, from 0.
    ``user_type`` says more about a type that did not come with Postgres.
    """

    column_name: str
    base_type: str
    full_type: str
    type_oid: int
    typmod: int
    required: bool
    always_generated: bool
    primary_key: int | None
    user_type: UserType | None = None


class QualifiedName:
    """What has a schema and a name in it."""

    schema: str
    name: str

    @property
    def qualified_name(self) -> str:
        """Schema and name as people write them; the default sink name."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class TargetTable(QualifiedName):
    """A table as Postgres's catalogue has it; ``note`` says what this batch has altered, or does not write."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    rules: bool
    row_security: bool
    unsafe_partition: str | None
    is_current: bool
    columns: tuple[TargetColumn, ...]
    note: str = ""

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name, quoted."""
        return sql.Identifier(self.schema, self.name)

    @property
    def is_temporary(self) -> bool:
        """Whether it goes away with the session that made it."""
        return self.persistence == "t"

    def columns_named(self, name: str) -> list[TargetColumn]:
        """The columns of exactly this name; if there are none, those that differ from it only in case."""
        exact = self._exactly_named.get(name)
        return [exact] if exact else self._named_in_any_case.get(name.lower(), [])

    # A batch asks for each of its columns, of which there may be 1,600: looking through all of them each time took a
    # second.
    @cached_property
    def _exactly_named(self) -> dict[str, TargetColumn]:
        return {column.column_name: column for column in self.columns}

    @cached_property
    def _named_in_any_case(self) -> dict[str, list[TargetColumn]]:
        found: dict[str, list[TargetColumn]] = {}
        for column in self.columns:
            found.setdefault(column.column_name.lower(), []).append(column)
        return found


@dataclass(frozen=True)
class ResolvedName(QualifiedName):
    """A table's schema and name, and its ``relkind`` and oid; None if there is no such table."""

    schema: str
    name: str
    kind: str | None
    oid: int | None = None


def resolve_table(connection: psycopg.Connection, table: str) -> ResolvedName:
    """
    The table behind what the user wrote, by Postgres's own rules for quotes, case and search path.

    A table that does not exist yet gets the schema in which CREATE TABLE would put it.
    """
    with connection.cursor() as cursor, suppress(*_NO_NAME):
        cursor.execute(_resolve(table), prepare=False)
        return _resolved(cursor.fetchone(), table)
    return _resolved(None, table)


def resolve_tables(connection: psycopg.Connection, tables: Sequence[str]) -> list[ResolvedName]:
    """
    What :func:`resolve_table` says of each of several tables, in one round trip.

    :raises TargetError: BAD_TABLE_NAME, SCHEMA_MISSING.
    """
    try:
        found = connection.execute(_RESOLVE_ALL, [list(tables)]).fetchall()
    except _NO_NAME as error:
        raise TargetError(
            "BAD_TABLE_NAME",
            f"One of {', '.join(map(repr, tables))} is not a table's name ({error.diag.message_primary}).",
            NOTHING,
            "Write table or schema.table, and put names with capitals or odd characters in double quotes: "
            "'app.\"Orders\"'.",
        ) from error
    return [_resolved(row, table) for row, table in zip(found, tables, strict=True)]


def look_up_table(connection: psycopg.Connection, table: str) -> tuple[ResolvedName, TargetTable | None]:
    """
    Like :func:`resolve_table`, and the table as the catalogue has it now, or None if there is none.

    Read for every batch: people alter tables under a stream.
    """
    with connection.cursor() as cursor, suppress(*_NO_NAME):
        cursor.execute(look_up_statements(table), prepare=False)
        found, described = looked_up(cursor, table)
        return found, described and with_user_types(connection, described)
    return _resolved(None, table), None


def look_up_statements(table: str) -> sql.Composed:
    """One text that asks for all that :func:`looked_up` reads."""
    return sql.SQL("; ").join([_resolve(table), search_path.under_ours(sql.SQL(_DESCRIBE))])


def looked_up(cursor: psycopg.Cursor[Any], table: str) -> tuple[ResolvedName, TargetTable | None]:
    """Read the answers; the cursor is left at the next one, that of the statement that restores the search_path."""
    found = _resolved(cursor.fetchone(), table)
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


def _resolve(table: str) -> sql.Composed:
    return sql.SQL(_RESOLVE).format(table=sql.Literal(table))


def _resolved(found: tuple[Any, ...] | None, table: str) -> ResolvedName:
    parts, current_schema, schema, name, oid, kind, exists = (found or ((), *[None] * 6))[:7]
    if exists and oid is None:
        raise psycopg.errors.SerializationFailure(f"{table} was created after this transaction had taken its snapshot")
    if oid is None and len(parts) in (1, 2):
        # An absent table cannot be looked up, so its name is split the way to_regclass would split it.
        schema, name = (current_schema, *parts)[-2:]
    if schema is None and name is not None:
        raise TargetError(
            "SCHEMA_MISSING",
            f"table={table!r} names no schema, and no schema on the role's search_path exists.",
            NOTHING,
            "Write schema.table, or set search_path for the role or in url: options=-csearch_path=app.",
        )
    if schema is None or name is None:
        raise TargetError(
            "BAD_TABLE_NAME",
            f"table={table!r} is not a table's name.",
            NOTHING,
            "Write table or schema.table, and put names with capitals or odd characters in double quotes: "
            "'app.\"Orders\"'.",
        )
    if parts[:-1] == [TEMPORARY]:
        parts = [schema, parts[-1]]
    if [schema, name][-len(parts) :] != parts[-2:]:
        raise TargetError(
            "BAD_TABLE_NAME",
            f"table={table!r} is longer than the names that Postgres keeps: cut off, it would mean {schema}.{name}.",
            NOTHING,
            "Use names of at most 63 bytes, which Postgres keeps as they are.",
        )
    return ResolvedName(schema, name, kind, oid)


# What to_regclass and parse_ident raise for a text that is not a name.
_NO_NAME = (
    psycopg.errors.InvalidName,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.SyntaxError,
    psycopg.errors.FeatureNotSupported,
)

# Everything is qualified, because the user's search_path is in force here and decides. The oid that is found is kept
# for the next statement of the same text.
_RESOLVE = """
SELECT pg_catalog.parse_ident(t.given), pg_catalog.current_schema(), n.nspname, c.relname, c.oid,
       c.relkind::pg_catalog.text, pg_catalog.to_regclass(t.given) IS NOT NULL,
       pg_catalog.set_config('pgonce.target', coalesce(c.oid, 0)::pg_catalog.text, true)
FROM (SELECT {table}::pg_catalog.text AS given) AS t
LEFT JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(t.given)
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
"""

_RESOLVE_ALL = """
SELECT pg_catalog.parse_ident(t.given), pg_catalog.current_schema(), n.nspname, c.relname, c.oid,
       c.relkind::pg_catalog.text, pg_catalog.to_regclass(t.given) IS NOT NULL
FROM pg_catalog.unnest(%s::pg_catalog.text[]) WITH ORDINALITY AS t(given, place)
LEFT JOIN pg_catalog.pg_class AS c ON c.oid OPERATOR(pg_catalog.=) pg_catalog.to_regclass(t.given)
LEFT JOIN pg_catalog.pg_namespace AS n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
ORDER BY t.place
"""

UNSAFE_PARTITION = """
SELECT t.relid::pg_catalog.regclass::text
FROM pg_catalog.pg_partition_tree({oid}) AS t JOIN pg_catalog.pg_class AS p ON p.oid = t.relid
WHERE p.relpersistence <> 'p' OR p.relkind NOT IN ('r', 'p') LIMIT 1
"""

# Domains are resolved to their base types, however deep: a domain has its base type's binary form (and COPY runs its
# checks), while an explicit cast to a domain would cut text.
_DESCRIBE = f"""
WITH RECURSIVE resolved AS (
    SELECT a.attrelid, a.attnum, a.atttypid AS type_oid, a.atttypmod AS typmod
    FROM pg_catalog.pg_attribute AS a
    WHERE a.attrelid = current_setting('pgonce.target')::oid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT r.attrelid, r.attnum, d.typbasetype, d.typtypmod
    FROM resolved AS r JOIN pg_catalog.pg_type AS d ON d.oid = r.type_oid AND d.typtype = 'd'
)
SELECT c.oid, n.nspname AS schema, c.relname AS name, c.relkind::text AS kind, c.relpersistence::text AS persistence,
       -- relhasrules stays true for a while after the last rule was dropped.
       EXISTS (SELECT FROM pg_catalog.pg_rewrite AS w WHERE w.ev_class = c.oid AND w.rulename <> '_RETURN') AS rules,
       pg_catalog.row_security_active(c.oid) AS row_security,
       ({UNSAFE_PARTITION.format(oid="c.oid")}) AS unsafe_partition,
       -- A table that was rewritten, or a partition that was attached, since the snapshot was taken.
       (c.relkind <> 'r' OR c.relfilenode = pg_catalog.pg_relation_filenode(c.oid)) AND NOT EXISTS (
           SELECT FROM pg_catalog.pg_partition_tree(c.oid) AS t
           WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_class AS p WHERE p.oid = t.relid)) AS is_current,
       a.attname::text AS column_name,
       pg_catalog.format_type(r.type_oid, NULL) AS base_type,
       pg_catalog.format_type(r.type_oid, r.typmod) AS full_type,
       r.type_oid, r.typmod,
       a.attnotnull AND NOT a.atthasdef AND a.attidentity = '' AS required,
       a.attidentity = 'a' OR a.attgenerated <> '' AS always_generated,
       (SELECT array_position(i.indkey::int2[], a.attnum) FROM pg_catalog.pg_index AS i
        WHERE i.indrelid = c.oid AND i.indisprimary
        AND array_position(i.indkey::int2[], a.attnum) < i.indnkeyatts) AS primary_key
FROM pg_catalog.pg_class AS c
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
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
