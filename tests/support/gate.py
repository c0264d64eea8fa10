"""
Let a batch wait inside its transaction, just before it is recorded, for example until its driver is killed.

Runs in: pytest. Invariant: the wait is in Postgres, by a trigger on the ledger, so it is the same for every way in; it
ends with the session that holds the gate.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from support.fixtures.driver import wait_until

_GATE = 4713
_WAITING = f"FROM pg_locks WHERE locktype = 'advisory' AND objid = {_GATE} AND NOT granted"


@contextmanager
def gate_before_batch(batch_id: int, url: str, *, ends: bool = False) -> Iterator[str]:
    """
    Let every writer's batch of this number wait while the block runs; then the gate is taken away.

    The block gets a query that counts those that wait.

    :param ends: whether to end the sessions that wait. COMMIT arrives with the record, so that the server commits
        otherwise, even if the driver was killed.
    """
    with psycopg.connect(url, autocommit=True) as holder:
        holder.execute(f"SELECT pg_advisory_lock({_GATE})".encode())
        holder.execute(
            "CREATE FUNCTION wait_at_gate() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN PERFORM pg_advisory_xact_lock_shared({_GATE}); RETURN NEW; END'".encode()
        )
        holder.execute(
            f"CREATE TRIGGER gate BEFORE INSERT ON pgonce.batches FOR EACH ROW WHEN (NEW.batch_id = {batch_id}) "
            "EXECUTE FUNCTION wait_at_gate()".encode()
        )
        count = f"SELECT count(*) {_WAITING}"
        yield count
        if ends:
            holder.execute(f"SELECT pg_terminate_backend(pid) {_WAITING}".encode())
            assert wait_until(lambda: holder.execute(count.encode()).fetchone() == (0,))
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(b"DROP TRIGGER gate ON pgonce.batches")
