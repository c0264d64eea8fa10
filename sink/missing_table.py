"""
Which table did the user mean, where there is none of that name?

Runs where a target is looked up: in the commit, and before Spark's job. Invariant: it only reads the catalogue, and its
statement runs under our search_path.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from offsets_store import search_path
from offsets_store.errors import NOTHING
from sink.catalogue import ResolvedName
from sink.errors import TargetError

_FOUND = """
SELECT EXISTS (SELECT FROM pg_namespace WHERE nspname = {schema}),
       ARRAY(SELECT quote_ident(n.nspname) || '.' || quote_ident(c.relname)
             FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
             WHERE lower(c.relname) = lower({name}) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
             AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname NOT IN ('information_schema', 'pgonce')
             ORDER BY n.nspname <> {schema}, n.nspname, c.relname LIMIT 3)
"""


def missing_table(connection: psycopg.Connection, found: ResolvedName) -> TargetError:
    """The error for a table that is not there, with the names that differ only in case or schema."""
    schema_is_there, near = _look_around(connection, found)
    what = f"There is no table {found.qualified_name}" + ("." if schema_is_there else ", and no such schema.")
    if near:
        remedy = f"There is {', '.join(near)}: if it is meant, write table={near[0]}"
        remedy += ", quotes and all." if '"' in near[0] else "."
        remedy += " Without double quotes Postgres reads a name in lower case; one without a schema is looked up along"
    elif schema_is_there:
        remedy = "Create it, or set createTable=true. An unqualified name is looked up along"
    else:
        remedy = "Create the schema (createTable does not), or correct its name. An unqualified name is looked up along"
    return TargetError("TARGET_MISSING", what, NOTHING, f"{remedy} the role's search_path.")


def schema_is_missing(connection: psycopg.Connection, found: ResolvedName) -> bool:
    """Whether the schema in which the table would be created is not there."""
    return not _look_around(connection, found)[0]


def _look_around(connection: psycopg.Connection, found: ResolvedName) -> tuple[bool, list[str]]:
    cursor = connection.cursor()
    statement = sql.SQL(_FOUND).format(schema=sql.Literal(found.schema), name=sql.Literal(found.name))
    search_path.execute_in_tx(cursor, statement)
    row = cursor.fetchone()
    return (row[0], row[1]) if row else (True, [])
