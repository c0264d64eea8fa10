"""
Does the role have the privileges that every batch into this table needs?

Runs in the first look, and in the command ``pgonce check``. Invariant: only what Postgres would refuse in any batch is
refused here; what depends on the rows, or on how many there are, is left to the commit.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NOTHING, TargetError

from ..options.destination import BY_KEY, Destination
from .by_key.keys import (
    Upsert,
)
from .checked_table import ColumnPlan
from .table.catalogue import TargetTable

# Of columns, because a role may have been granted some of them only. All names are qualified: the user's search_path is
# in force.
_HELD = """
SELECT current_user::pg_catalog.text, pg_catalog.has_table_privilege({oid}::pg_catalog.oid, 'DELETE'),
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid
               AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
               AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'INSERT')),
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid
               AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
               AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'UPDATE')),
       ARRAY(SELECT a.attname::pg_catalog.text FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid OPERATOR(pg_catalog.=) {oid}::pg_catalog.oid
               AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
               AND pg_catalog.has_column_privilege(a.attrelid, a.attnum, 'SELECT'))
"""


def refuse_missing_privileges(
    connection: psycopg.Connection,
    table: TargetTable,
    plan: Sequence[ColumnPlan],
    upsert: Upsert | None,
    destination: Destination,
) -> None:
    """:raises TargetError: TARGET_NOT_PERMITTED, with the GRANT that is missing."""
    row = connection.execute(sql.SQL(_HELD).format(oid=table.oid), prepare=False).fetchone()
    if row is None:
        return
    role, may_delete, insertable, updatable, readable = row
    there = {column.column_name for column in table.columns if column.type_oid}
    missing = []
    only_deletes = destination.changes is not None and destination.changes.all_delete
    if not only_deletes:
        missing += _lacking("INSERT", [column.target for column in plan], insertable, there)
    if destination.mode in BY_KEY and upsert is not None:
        missing += _lacking("SELECT", [key.target for key in upsert.keys], readable, there)
        if destination.mode == "upsert" and upsert.existing.on_conflict == "update":
            missing += _lacking("UPDATE", upsert.changed(plan), updatable, there)
    if destination.mode == "complete" and not may_delete:
        missing.append("DELETE")
    if missing:
        name = table.identifier.as_string(None)
        raise TargetError(
            "TARGET_NOT_PERMITTED",
            f"The role {role} lacks {' and '.join(missing)} on {table.qualified_name}, which every batch with "
            f"mode={destination.mode} needs.",
            NOTHING,
            f"GRANT {', '.join(missing)} ON {name} TO {sql.Identifier(role).as_string(None)};",
        )


def _lacking(privilege: str, needed: Sequence[str], held: Sequence[str], there: set[str]) -> list[str]:
    """The privilege as GRANT names it; empty if the role has it on all needed columns that are there."""
    lacking = [name for name in needed if name in there and name not in held]
    if not lacking:
        return []
    if not held:
        return [privilege]
    return [f"{privilege} ({', '.join(sql.Identifier(name).as_string(None) for name in lacking)})"]
