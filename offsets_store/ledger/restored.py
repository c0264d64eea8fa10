"""
Detect that the ledger was restored from a dump, and find the oids that its tables have in this database.

Runs where a session begins to use the ledger, before it reads any oid in it. Invariant: a table that the ledger knew by
its oid before a dump gets the oid that it has now, found by its name. If no table has the name, the ledger keeps no oid
of a table for it, so that no other table is taken for it.

A physical copy (a standby, a base backup, pg_upgrade) keeps oids, and keeps which transaction wrote a row, its xmin. A
dump keeps neither. So one row of the ledger says which transaction wrote it, and is true as long as its xmin agrees.
"""

from __future__ import annotations

import logging

import psycopg

from ..errors import LedgerError
from ..postgres.text import QUALIFIED_NAME

_log = logging.getLogger("pgonce")


def follow_restore_in_tx(connection: psycopg.Connection) -> None:
    """
    Look up the oids in the ledger by the names of their tables, if it was restored from a dump.

    Our search_path must be in force, and the transaction must be one of its own, not a savepoint in another.

    :raises LedgerError: LEDGER_RESTORED, if the role may not do that.
    """
    if is_at_home(connection):
        return
    try:
        _look_up_in_tx(connection)
    except psycopg.errors.InsufficientPrivilege as error:
        raise LedgerError.usual(
            "LEDGER_RESTORED",
            "The ledger was restored from a dump, so the oids of its tables have to be looked up again, which this "
            f"role may not do: {error.diag.message_primary}.",
            "Run `pgonce init` as the ledger's owner, or start a query that writes to this database; then try again.",
        ) from error


def _look_up_in_tx(connection: psycopg.Connection) -> None:
    # Of several sessions that find this out together, one looks the tables up, and the others wait for it.
    connection.execute(_KEEP_ROW)
    connection.execute("SELECT FROM pgonce.home FOR UPDATE")
    if not is_at_home(connection):
        for statement in (_WRITERS, _BATCH_JOBS, _TOMBSTONE_SETS, _UNKNOWN_SETS, _AT_HOME):
            connection.execute(statement)
        _log.warning("the ledger was restored from a dump: the tables in it were looked up again by their names")


def is_at_home(connection: psycopg.Connection) -> bool:
    """Whether the oids in the ledger are those of this database."""
    ((is_so,),) = connection.execute(_IS_AT_HOME)
    return bool(is_so)


# xmin has the last 32 bits of a transaction's id.
_IS_AT_HOME = "SELECT EXISTS (SELECT FROM pgonce.home WHERE xmin::text::bigint = written_in & 4294967295)"
# A dump of the schema alone has no row.
_KEEP_ROW = "INSERT INTO pgonce.home (written_in) VALUES (0) ON CONFLICT DO NOTHING"
_AT_HOME = "UPDATE pgonce.home SET written_in = pg_current_xact_id()::text::bigint, since = clock_timestamp()"

# If no table has the name, the oid is 0, which no table has.
_NAMES = f"""
names AS (
    SELECT {QUALIFIED_NAME} AS name, c.oid FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p')
)
"""


def _targets(table: str, *key: str) -> str:
    keys, same = ", ".join(key), " AND ".join(f"found.{column} = w.{column}" for column in key)
    return f"""
WITH {_NAMES}, found AS (
    SELECT {keys}, jsonb_object_agg(t.key, coalesce(names.oid::bigint, 0)) AS targets
    FROM {table} AS w CROSS JOIN LATERAL
         jsonb_each(CASE WHEN jsonb_typeof(w.targets) = 'object' THEN w.targets ELSE '{{}}' END) AS t
         LEFT JOIN names ON names.name = t.key
    GROUP BY {keys}
)
UPDATE {table} AS w SET targets = found.targets FROM found WHERE {same} AND found.targets <> w.targets
"""


_WRITERS = _targets("pgonce.writers", "writer_id")
_BATCH_JOBS = _targets("pgonce.batch_jobs", "sink_name", "batch_key")
_TOMBSTONE_SETS = f"""
WITH {_NAMES}
UPDATE pgonce.tombstone_sets AS s SET target = names.oid FROM names WHERE names.name = s.target_name
"""
_UNKNOWN_SETS = f"""
WITH {_NAMES}
DELETE FROM pgonce.tombstone_sets AS s WHERE NOT EXISTS (SELECT FROM names WHERE names.name = s.target_name)
"""
