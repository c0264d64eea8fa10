"""A ledger that is restored in another database, as a dump is: its rows are copied, and no oid is."""

from __future__ import annotations

import psycopg
from psycopg import sql

from pgonce.offsets_store.ledger.migrations import ensure_ledger, ledgers_seen


def restore_ledger(url: str, other_url: str) -> None:
    """Let the other database have the ledger's rows, and no process that has looked at it since."""
    ensure_ledger(other_url)
    with psycopg.connect(url) as source, psycopg.connect(other_url) as restored:
        names = [name for (name,) in source.execute(_TABLES).fetchall()]
        restored.execute("SET session_replication_role = replica")
        for name in names:
            relation = sql.Identifier("pgonce", name)
            restored.execute(sql.SQL("DELETE FROM {}").format(relation))
            with (
                source.cursor().copy(sql.SQL("COPY {} TO STDOUT").format(relation)) as read,
                restored.cursor().copy(sql.SQL("COPY {} FROM STDIN").format(relation)) as write,
            ):
                for data in read:
                    write.write(data)
        # Sequences of identities go on after the rows, as in a dump.
        for name, column in restored.execute(_IDENTITIES).fetchall():
            restored.execute(
                sql.SQL("SELECT setval(pg_get_serial_sequence({}, {}), coalesce(max({}), 1)) FROM {}").format(
                    f"pgonce.{name}", column, sql.Identifier(column), sql.Identifier("pgonce", name)
                )
            )
    ledgers_seen.discard(other_url)


_TABLES = "SELECT relname FROM pg_class WHERE relnamespace = 'pgonce'::regnamespace AND relkind = 'r'"
_IDENTITIES = """
SELECT c.relname, a.attname FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
WHERE c.relnamespace = 'pgonce'::regnamespace AND a.attidentity <> ''
"""
