"""
What does an administrator run who does not let the streaming role create the ledger?

Pure: runs in ``pgonce init``. Invariant: a streaming role is granted what the code does with each table, and nothing
more.
"""

from __future__ import annotations

from psycopg import sql

from ..postgres.bounds import LOCK_SECONDS
from ..postgres.search_path import SET_OURS
from .migrations import MIGRATIONS
from .tables import SCHEMA, VIEWS

# A test revokes them one by one.
PRIVILEGES = {
    "SELECT, INSERT, UPDATE": ("writers", "interventions", "batch_jobs", "home"),
    "SELECT, INSERT, UPDATE, DELETE": ("batches", "progress", "tombstones", "tombstone_sets"),
    "SELECT, INSERT, DELETE": ("replays", "staged_tables"),
    "SELECT, INSERT": ("dead_letters", "runs", "target_changes", "batch_job_skips", "batch_job_aborts"),
    "SELECT": ("schema_version", *VIEWS),
}


def init_sql(role: str | None = None) -> str:
    """The whole DDL for an administrator to run by hand, with the grants that ``role`` needs."""
    # Commits of running queries hold locks on these tables, and all later commits would wait behind this.
    bound = f"SET LOCAL lock_timeout = '{LOCK_SECONDS:g}s';"
    parts = ["BEGIN;", f"{SET_OURS};", bound, f"CREATE SCHEMA IF NOT EXISTS {SCHEMA};"]
    for migration in MIGRATIONS:
        parts.append(migration.ddl)
        parts.append(
            "INSERT INTO pgonce.schema_version (version, least_reader_version) "
            f"VALUES ({migration.version}, {migration.least_reader_version});"
        )
    if role is not None:
        parts.extend(f"{statement};" for statement in grants(role))
    return "\n".join([*parts, "COMMIT;", ""])


def grants(role: str) -> tuple[str, ...]:
    """What a streaming role needs on the ledger; CREATE is for staging tables."""
    name = sql.Identifier(role).as_string(None)
    # By name, not ALL TABLES: this schema also has staging tables of other roles, which only those roles may grant.
    return (
        f"GRANT USAGE, CREATE ON SCHEMA {SCHEMA} TO {name}",
        *(
            f"GRANT {privileges} ON {', '.join(f'{SCHEMA}.{relation}' for relation in relations)} TO {name}"
            for privileges, relations in PRIVILEGES.items()
        ),
    )
