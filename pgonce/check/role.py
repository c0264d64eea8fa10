"""
Questions about the role: whether it may do what a commit does, and whether there are connections for it.

Runs in the command ``pgonce check``; a first batch asks the same of the ledger. Invariant: it only looks.
"""

from __future__ import annotations

import psycopg

from pgonce.offsets_store.errors import LedgerError
from pgonce.offsets_store.ledger import SCHEMA
from pgonce.offsets_store.ledger.migrations import require_ledger
from pgonce.offsets_store.ledger.privileges import listed, may_create_schema, missing_on_ledger
from pgonce.offsets_store.postgres.translate import GRANTS_NEEDED

from .answers import Answer, Holds, Question, one_row

_HAS_SCHEMA = "SELECT EXISTS (SELECT FROM pg_catalog.pg_namespace WHERE nspname = %s)"
_MAY_STAGE = "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'TEMPORARY')"
_CONNECTIONS = """
SELECT pg_catalog.current_setting('max_connections')::pg_catalog.int4
       - pg_catalog.current_setting('superuser_reserved_connections')::pg_catalog.int4,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_activity WHERE backend_type = 'client backend'),
       (SELECT r.rolconnlimit FROM pg_catalog.pg_roles AS r WHERE r.rolname = current_user),
       (SELECT d.datconnlimit FROM pg_catalog.pg_database AS d WHERE d.datname = pg_catalog.current_database())
"""
# A query holds one connection for its commit, and one more to look who holds a lock.
_FEW = 10


def _ledger(connection: psycopg.Connection) -> Answer:
    if not one_row(connection, _HAS_SCHEMA, SCHEMA)[0]:
        if not may_create_schema(connection):
            return Answer(Holds.NO, f"there is no schema {SCHEMA}, and the role may not create it", GRANTS_NEEDED)
        return Answer(Holds.YES, f"there is no schema {SCHEMA} yet; the role may create it, with the first batch")
    try:
        require_ledger(connection)
    except LedgerError as error:
        return Answer(Holds.NO, error.what, error.remedy)
    if missing := missing_on_ledger(connection):
        return Answer(Holds.NO, f"the role lacks {listed(missing)}", GRANTS_NEEDED)
    return Answer(
        Holds.YES, f"the ledger exists (schema {SCHEMA}), and the role has all permissions on it that a commit needs"
    )


def _temporary(connection: psycopg.Connection) -> Answer:
    if one_row(connection, _MAY_STAGE)[0]:
        return Answer(Holds.YES, "the role may create temporary tables")
    return Answer(
        Holds.NO,
        "the role may not create temporary tables, which most batches need",
        "GRANT TEMPORARY ON DATABASE <database> TO <role>.",
    )


def _connections(connection: psycopg.Connection) -> Answer:
    limit, used, of_role, of_database = (int(str(value)) for value in one_row(connection, _CONNECTIONS))
    least = min(value for value in (limit, of_role, of_database) if value >= 0)
    says = f"max_connections leaves {limit} connections for ordinary roles, of which {used} are in use"
    limits = {"role": of_role, "database": of_database}
    says += "".join(f"; the {whose}'s own limit is {value}" for whose, value in limits.items() if value >= 0)
    if min(limit - used, least) < _FEW:
        return Answer(
            Holds.WEAKER,
            says,
            "Each query that commits holds one connection, and each task that stages another: raise the limit, or set "
            "PGONCE_MAX_CONNECTIONS in the driver's environment.",
        )
    return Answer(Holds.YES, says)


QUESTIONS = (
    Question("ledger", "Batches can be recorded.", _ledger),
    Question("temporary-tables", "Rows can be converted and upserted.", _temporary),
    Question("connections", "There is a connection for each query that commits.", _connections),
)
