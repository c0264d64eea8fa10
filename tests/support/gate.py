"""
Let batches wait inside their transactions, for example until their driver is killed.

Runs in: pytest. Invariant: the wait is in Postgres, by triggers, so it is the same for every way in; it ends with the
session that holds the gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from support.fixtures.driver import wait_until

_GATE = 4713
_WAITING = (
    "FROM pg_locks AS l JOIN pg_database AS d ON d.oid = l.database WHERE d.datname = current_database() "
    f"AND locktype = 'advisory' AND objid = {_GATE} AND NOT granted"
)


@contextmanager
def gate(url: str, *tables: str, batch_id: int | None = None, ends: bool = False) -> Iterator[str]:
    """
    Let whoever has inserted into one of the tables wait while the block runs; then the gate is taken away.

    The block gets a query that counts those that wait. Without ``tables`` the gate is at the record: COMMIT arrives
    with it, so that the server commits when the gate opens, even if the driver was killed.

    :param batch_id: only the record of every writer's batch of this number.
    :param ends: whether to end the sessions that wait.
    """
    which = "STATEMENT" if batch_id is None else f"ROW WHEN (NEW.batch_id = {batch_id})"
    with psycopg.connect(url, autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({_GATE})".encode())
        holder.execute(
            "CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN PERFORM pg_advisory_xact_lock_shared({_GATE}); RETURN NULL; END'".encode()
        )
        for table in tables or ("pgonce.batches",):
            at = f"CREATE TRIGGER gate AFTER INSERT ON {table} FOR EACH {which} EXECUTE FUNCTION wait_at_gate()"
            holder.execute(at.encode())
        count = f"SELECT count(*) {_WAITING}"
        yield count
        if ends:
            holder.execute(f"SELECT pg_terminate_backend(pid) {_WAITING}".encode())
            assert wait_until(lambda: holder.execute(count.encode()).fetchone() == (0,))
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(b"DROP FUNCTION wait_at_gate CASCADE")
