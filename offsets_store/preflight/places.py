"""
Where may this role create a table that others can see?

Runs in the command ``pgonce check``. Invariant: it only looks.
"""

from __future__ import annotations

import psycopg

from ..ledger.tables import SCHEMA
from .answers import one_row

_WHERE = """
SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE'),
       coalesce((SELECT pg_catalog.has_schema_privilege(n.oid, 'CREATE') FROM pg_catalog.pg_namespace AS n
                 WHERE n.nspname = %s), false)
"""


def may_create(connection: psycopg.Connection) -> tuple[bool, bool]:
    """Whether the role may create a schema of its own; and whether it may create tables in the ledger's."""
    schema, table = one_row(connection, _WHERE, SCHEMA)
    return bool(schema), bool(table)
