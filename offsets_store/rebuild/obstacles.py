"""
What stays with a table when it changes its name, so that those who use it would not follow the name?

Runs in the command ``pgonce swap``. Invariant: whatever Postgres has recorded as depending on one of the tables is an
obstacle, unless it is a part of that table.
"""

from __future__ import annotations

import psycopg

from ..ledger.tables import SCHEMA
from .described_table import Table


def obstacles(connection: psycopg.Connection, living: Table, new: Table) -> list[str]:
    """Why the two cannot be exchanged, in words; empty if they can."""
    found = [reason for table in (living, new) for reason in _of(connection, table)]
    if living.schema != new.schema:
        found.append(f"they are in different schemas, {living.schema} and {new.schema}")
    if living.owner != new.owner:
        found.append(
            f"{living.qualified_name} belongs to {living.owner}, and {new.qualified_name} to {new.owner}: run "
            f"ALTER TABLE {new.qualified_name} OWNER TO {living.owner}"
        )
    return found


def _of(connection: psycopg.Connection, table: Table) -> list[str]:
    name = table.qualified_name
    if table.schema == SCHEMA:
        return [f"{name} belongs to the ledger"]
    if table.kind != "r":
        return [f"{name} is partitioned, or is no table"]
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
