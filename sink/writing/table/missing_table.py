"""
Which table did the user mean, if there is none of that name?

Runs where a target is looked up: in the commit, and before Spark's job. Invariant: it only reads the catalogue, and its
statement runs under our search_path.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError
from pgonce.offsets_store.postgres import search_path

from .table_name import TEMPORARY, ResolvedName

_NEAR = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
WHERE lower(c.relname) = lower({name}) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
AND left(n.nspname, 3) <> 'pg_' AND n.nspname NOT IN ('information_schema', 'pgonce')
ORDER BY n.nspname <> {schema}, n.nspname, c.relname LIMIT 3
"""


def missing_table(connection: psycopg.Connection, found: ResolvedName) -> TargetError:
    """The error for a table that is not there, with the names that differ only in case or schema."""
    cursor = connection.cursor()
    near = sql.SQL(_NEAR).format(schema=sql.Literal(found.schema), name=sql.Literal(found.name))
    search_path.execute_in_tx(cursor, near)
    names = [name for (name,) in cursor.fetchall()]
    if names:
        remedy = f"There is {', '.join(names)}: if it is meant, write table={names[0]}"
        remedy += ", quotes and all." if '"' in names[0] else "."
        remedy += " Without double quotes Postgres reads a name in lower case; one without a schema is looked up along"
    else:
        remedy = "Create it, or set createTable=true. An unqualified name is looked up along"
    what = f"There is no table {found.qualified_name}."
    return TargetError("TARGET_MISSING", what, NOTHING, f"{remedy} the role's search_path.")


def refuse_missing_schema(connection: psycopg.Connection, schema: str) -> None:
    """:raises TargetError: if the schema in which a table should be does not exist."""
    if schema == TEMPORARY:
        return
    exists = "SELECT pg_catalog.to_regnamespace(pg_catalog.quote_ident(%s)) IS NOT NULL"
    if connection.execute(exists, [schema]).fetchone() != (True,):
        raise TargetError(
            "SCHEMA_MISSING",
            f"There is no schema {schema}.",
            NOTHING,
            f"Create it (createTable creates the table only), or correct the name {schema} in table.",
        )
