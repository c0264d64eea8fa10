"""
What a role needs on the ledger, and which of it the session's role lacks.

Runs on the driver before a first batch, and in the command ``pgonce check``. Invariant: it only looks, in the
transaction of its caller.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg

from . import SCHEMA, STAGING_SCHEMA
from .migrations import PRIVILEGES

_MOST_SHOWN = 3
_MAY_CREATE = "SELECT pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')"


def may_create_schema(connection: psycopg.Connection) -> bool:
    """Whether the role may create a schema of its own."""
    ((may,),) = connection.execute(_MAY_CREATE)
    return bool(may)


Needed = tuple[str, str, str]
"""A schema, or a table; its name; and a privilege on it."""

_GRANTED: tuple[Needed, ...] = (
    ("schema", SCHEMA, "USAGE"),
    ("schema", STAGING_SCHEMA, "USAGE"),
    ("schema", STAGING_SCHEMA, "CREATE"),
    *(
        ("table", f"{SCHEMA}.{relation}", privilege)
        for privileges, relations in PRIVILEGES.items()
        for relation in relations
        for privilege in privileges.split(", ")
    ),
)
OF_ANY_BATCH: tuple[Needed, ...] = (
    ("schema", SCHEMA, "USAGE"),
    *(("any_column", f"{SCHEMA}.writers", privilege) for privilege in ("SELECT", "INSERT", "UPDATE")),
    *(("any_column", f"{SCHEMA}.{table}", "INSERT") for table in ("batches", "runs")),
)
"""What no batch can be recorded without. The rest of what ``pgonce init --role`` grants is needed now and then."""
OF_ANY_JOB: tuple[Needed, ...] = (
    ("schema", SCHEMA, "USAGE"),
    *(("any_column", f"{SCHEMA}.batch_jobs", privilege) for privilege in ("SELECT", "INSERT")),
)
"""The same for a batch job."""


def missing_on_ledger(connection: psycopg.Connection, needed: Sequence[Needed] = _GRANTED) -> list[str]:
    """The text for those of these privileges that the role lacks; in one round trip."""
    # A schema that does not exist counts as lacking, and is no error.
    objects = {"schema": "pg_catalog.to_regnamespace(%s)"}
    asked = ", ".join(f"pg_catalog.has_{kind}_privilege({objects.get(kind, '%s')}, %s)" for kind, *_ in needed)
    (held,) = connection.execute(f"SELECT {asked}".encode(), [text for _, *texts in needed for text in texts])
    return [
        f"{privilege} on {'schema ' if kind == 'schema' else ''}{name}"
        for (kind, name, privilege), has in zip(needed, held, strict=True)
        if not has
    ]


def listed(names: Sequence[str]) -> str:
    """The first few of them."""
    shown, more = names[:_MOST_SHOWN], len(names) - _MOST_SHOWN
    return ", ".join(shown) + (f", and {more} more" if more > 0 else "")
