"""
Describe a table before it is exchanged for another, and find what would stay with it.

Runs in the command ``pgonce swap``. Invariant: it only reads, under our search_path, so that every name in a definition
has its schema. Every object that Postgres has recorded as depending on one of the tables is an obstacle, unless it is a
part of that table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql
from psycopg.rows import dict_row

from ..ledger import SCHEMA
from ..postgres.text import qualified_name

EVERYBODY = "PUBLIC"
Grants = Mapping[tuple[str, str], bool]
"""Role (or everybody) and privilege, and whether the role may grant it to others."""


@dataclass(frozen=True)
class Column:
    """A column: its type with modifier and collation, its default, and how it is generated; what is said of it."""

    name: str
    number: int
    type: str
    not_null: bool
    default: str | None
    generated: str
    comment: str | None
    grants: Grants


@dataclass(frozen=True)
class Part:
    """
    An index or a constraint: its ``definition`` is the same for the same thing of another table.

    With ``refuses_rows`` there are rows that a table takes only without it. (NOT NULL is said of the columns.)
    """

    name: str
    definition: str
    is_index: bool
    refuses_rows: bool


@dataclass(frozen=True)
class Sequence:
    """A sequence that belongs to a column; ``is_identity`` if it is a part of it."""

    oid: int
    name: str
    column: str
    is_identity: bool
    grants: Grants


@dataclass(frozen=True)
class Table:
    """
    A table as the catalogue has it.

    ``borrowed`` are the columns whose default is the next value of a sequence that belongs to another table, with the
    oid of that sequence. ``replica_identity`` is the letter that ``pg_class`` has for it.
    """

    oid: int
    schema: str
    name: str
    owner: str
    kind: str
    persistence: str
    replica_identity: str
    comment: str | None
    grants: Grants
    columns: tuple[Column, ...]
    parts: tuple[Part, ...]
    sequences: tuple[Sequence, ...]
    borrowed: Mapping[str, int]

    @property
    def qualified_name(self) -> str:
        """Schema and name as SQL and the option ``table`` take them; the default sink name."""
        return qualified_name(self.schema, self.name)

    @property
    def identifier(self) -> sql.Identifier:
        """Its qualified name, quoted."""
        return sql.Identifier(self.schema, self.name)


def find_table(connection: psycopg.Connection, name: str) -> int | None:
    """The oid of the table that the user means, along the user's search_path, which must be in force."""
    row = connection.execute("SELECT pg_catalog.to_regclass(%s)::pg_catalog.oid", [name]).fetchone()
    return int(row[0]) if row and row[0] is not None else None


def describe_table(connection: psycopg.Connection, oid: int) -> Table | None:
    """The table with this oid; None if it is gone."""
    with connection.cursor(row_factory=dict_row) as cursor:
        found = cursor.execute(_TABLE, [oid]).fetchone()
        if found is None:
            return None
        return Table(
            **{**found, "grants": _grants(found["grants"])},
            columns=tuple(Column(**_of(row)) for row in cursor.execute(_COLUMNS, [oid]).fetchall()),
            parts=tuple(Part(**row) for row in cursor.execute(_PARTS, [oid, oid]).fetchall()),
            sequences=tuple(Sequence(**_of(row)) for row in cursor.execute(_SEQUENCES, [oid]).fetchall()),
            borrowed={row["column"]: row["oid"] for row in cursor.execute(_BORROWED, [oid]).fetchall()},
        )


def _of(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "grants": _grants(row["grants"])}


def _grants(found: list[list[Any]] | None) -> Grants:
    grants: dict[tuple[str, str], bool] = {}
    # Two roles may have granted the same.
    for role, privilege, grantable in found or ():
        grants[role, privilege] = grantable or grants.get((role, privilege), False)
    return grants


def _acl(acl: str) -> str:
    return (
        "(SELECT json_agg(json_build_array(coalesce(r.rolname, 'PUBLIC'), a.privilege_type, a.is_grantable)) "
        f"FROM aclexplode({acl}) AS a LEFT JOIN pg_roles AS r ON r.oid = a.grantee)"
    )


_TABLE = f"""
SELECT c.oid::bigint AS oid, n.nspname AS schema, c.relname AS name, o.rolname AS owner, c.relkind::text AS kind,
       c.relpersistence::text AS persistence, c.relreplident::text AS replica_identity,
       obj_description(c.oid, 'pg_class') AS comment,
       {_acl("coalesce(c.relacl, acldefault('r', c.relowner))")} AS grants
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace JOIN pg_roles AS o ON o.oid = c.relowner
WHERE c.oid = %s
"""

# Of a default that takes a sequence's next value, which sequence it is does not matter here.
_COLUMNS = f"""
SELECT a.attname AS name, a.attnum AS number,
       format_type(a.atttypid, a.atttypmod)
       || CASE WHEN a.attcollation <> t.typcollation THEN ' COLLATE ' || a.attcollation::regcollation::text ELSE '' END
       AS type,
       a.attnotnull AS not_null,
       regexp_replace(pg_get_expr(d.adbin, d.adrelid), '^nextval[(].*[)]$', 'nextval') AS default,
       a.attidentity::text || a.attgenerated::text AS generated,
       col_description(a.attrelid, a.attnum) AS comment, {_acl("a.attacl")} AS grants
FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
LEFT JOIN pg_attrdef AS d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""

# An index and the constraint that stands on it have one name. Postgres 18 has constraints for NOT NULL. The definition
# of an exclusion constraint's index lacks its operators.
_PARTS = """
SELECT i.relname AS name, true AS is_index, x.indisunique OR x.indisexclusion AS refuses_rows,
       coalesce(c.contype::text || ' ', '') || CASE WHEN x.indisunique THEN 'UNIQUE ' ELSE '' END
       || CASE WHEN c.contype = 'x' THEN pg_get_constraintdef(c.oid) || ' ' ELSE '' END
       || substr(pg_get_indexdef(i.oid), length(format('CREATE %%sINDEX %%I ON %%I.%%I ',
              CASE WHEN x.indisunique THEN 'UNIQUE ' ELSE '' END, i.relname, n.nspname, t.relname)) + 1)
       || CASE WHEN c.condeferrable THEN ' DEFERRABLE' ELSE '' END
       || CASE WHEN c.condeferred THEN ' INITIALLY DEFERRED' ELSE '' END
       || CASE WHEN x.indisvalid THEN '' ELSE ' INVALID' END AS definition
FROM pg_index AS x JOIN pg_class AS i ON i.oid = x.indexrelid JOIN pg_class AS t ON t.oid = x.indrelid
JOIN pg_namespace AS n ON n.oid = t.relnamespace
LEFT JOIN pg_constraint AS c ON c.conindid = i.oid AND c.conrelid = t.oid AND c.contype IN ('p', 'u', 'x')
WHERE x.indrelid = %s
UNION ALL
SELECT c.conname, false, c.contype = 'c', pg_get_constraintdef(c.oid) FROM pg_constraint AS c
WHERE c.conrelid = %s AND c.contype IN ('c', 'n')
ORDER BY 4, 1
"""

_SEQUENCES = f"""
SELECT s.oid::bigint AS oid, s.relname AS name, a.attname AS column, d.deptype = 'i' AS is_identity,
       {_acl("coalesce(s.relacl, acldefault('s', s.relowner))")} AS grants
FROM pg_depend AS d JOIN pg_class AS s ON s.oid = d.objid AND s.relkind = 'S'
JOIN pg_attribute AS a ON a.attrelid = d.refobjid AND a.attnum = d.refobjsubid
WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = %s
  AND d.deptype IN ('a', 'i')
"""

_BORROWED = """
SELECT a.attname AS column, s.oid::bigint AS oid
FROM pg_attrdef AS e JOIN pg_attribute AS a ON a.attrelid = e.adrelid AND a.attnum = e.adnum
JOIN pg_depend AS d ON d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid AND d.refclassid = 'pg_class'::regclass
JOIN pg_class AS s ON s.oid = d.refobjid AND s.relkind = 'S'
WHERE e.adrelid = %s AND NOT EXISTS (
    SELECT FROM pg_depend AS o WHERE o.classid = 'pg_class'::regclass AND o.objid = s.oid
    AND o.refclassid = 'pg_class'::regclass AND o.refobjid = e.adrelid AND o.deptype IN ('a', 'i'))
"""


def obstacles(connection: psycopg.Connection, living: Table, new: Table) -> list[str]:
    """The texts that say why the two cannot be exchanged; empty if they can."""
    found = [reason for table in (living, new) for reason in _of_table(connection, table)]
    if living.schema != new.schema:
        found.append(f"they are in different schemas, {living.schema} and {new.schema}")
    if living.owner != new.owner:
        found.append(
            f"{living.qualified_name} belongs to {living.owner}, and {new.qualified_name} to {new.owner}: run "
            f"ALTER TABLE {new.qualified_name} OWNER TO {living.owner}"
        )
    return found


def _of_table(connection: psycopg.Connection, table: Table) -> list[str]:
    name = table.qualified_name
    if table.schema == SCHEMA:
        return [f"{name} belongs to the ledger"]
    if table.kind != "r":
        return [f"{name} is partitioned or not a table"]
    reasons = [] if table.persistence == "p" else [f"{name} is temporary or unlogged"]
    rows = connection.execute(_HANGING, {"oid": table.oid, "schema": table.schema, "name": table.name}).fetchall()
    return [*reasons, *(f"{name}: {row[0]}" for row in rows)]


# First what pg_depend knows: views, rules, triggers, policies, foreign keys (in both directions), publications,
# children, functions, columns of the table's row type. Then what it does not.
_HANGING = """
WITH self AS (
    SELECT c.oid, c.reltype, y.typarray, c.relrowsecurity OR c.relforcerowsecurity AS has_security, c.reloftype
    FROM pg_class AS c JOIN pg_type AS y ON y.oid = c.reltype WHERE c.oid = %(oid)s
)
SELECT pg_describe_object(d.classid, d.objid, d.objsubid) || ' depends on it'
FROM self, pg_depend AS d
WHERE (d.refclassid = 'pg_class'::regclass AND d.refobjid = self.oid
       OR d.refclassid = 'pg_type'::regclass AND d.refobjid IN (self.reltype, self.typarray))
  AND NOT (d.classid = 'pg_class'::regclass AND d.objid = self.oid)
  AND NOT (d.classid = 'pg_type'::regclass AND d.deptype = 'i')
  AND d.classid <> 'pg_statistic_ext'::regclass
  AND NOT EXISTS (SELECT FROM pg_attrdef AS e WHERE d.classid = 'pg_attrdef'::regclass AND e.oid = d.objid
                  AND e.adrelid = self.oid)
  AND NOT EXISTS (SELECT FROM pg_constraint AS c WHERE d.classid = 'pg_constraint'::regclass AND c.oid = d.objid
                  AND c.conrelid = self.oid AND c.contype <> 'f')
  AND NOT EXISTS (SELECT FROM pg_class AS c WHERE d.classid = 'pg_class'::regclass AND c.oid = d.objid
                  AND c.relkind IN ('i', 'I', 'S', 't'))
  AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE d.classid = 'pg_trigger'::regclass AND t.oid = d.objid
                  AND t.tgisinternal)
UNION SELECT 'it has a parent, ' || i.inhparent::regclass FROM pg_inherits AS i WHERE i.inhrelid = %(oid)s
UNION SELECT 'it has a child, ' || i.inhrelid::regclass FROM pg_inherits AS i WHERE i.inhparent = %(oid)s
UNION SELECT 'it is published by ' || quote_ident(p.pubname) FROM pg_publication_tables AS p
      WHERE p.schemaname = %(schema)s AND p.tablename = %(name)s
UNION SELECT 'a subscription writes to it' FROM pg_subscription_rel AS s WHERE s.srrelid = %(oid)s
UNION SELECT 'row-level security is switched on' FROM self WHERE has_security
UNION SELECT 'it is a typed table' FROM self WHERE reloftype <> 0
UNION SELECT 'it has a security label' FROM pg_seclabel AS s
      WHERE s.classoid = 'pg_class'::regclass AND s.objoid = %(oid)s
ORDER BY 1
"""
