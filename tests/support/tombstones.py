"""Deletes that are remembered, without a batch that deleted anything."""

from __future__ import annotations

import psycopg


def put_tombstone(admin: psycopg.Connection, table: str, key: str, order_value: str, order: str = "seq") -> None:
    """A tombstone of a table with the key ``id`` and this order, both numbers; key and order are JSON."""
    (set_id,) = admin.execute(
        "INSERT INTO pgonce.tombstone_sets (target, target_name, key_columns, key_types, order_column, order_type, "
        "expires_at) VALUES (%s::regclass, 'public.' || %s, '{id}', '{number}', %s, 'number', now() + '7 days') "
        "RETURNING tombstone_set_id",
        [table, table, order],
    ).fetchone()
    admin.execute(
        "INSERT INTO pgonce.tombstones VALUES (%s, %s, %s, now(), now() + '7 days')", [set_id, key, order_value]
    )
