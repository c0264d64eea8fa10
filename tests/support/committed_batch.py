"""
One batch, without Spark, under any names.

Runs in: pytest. Invariant: a batch goes through the commit that every way in uses, inline or staged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import types as t
from sqlalchemy import Connection
from support.typed_rows import Columns, staged_rows, typed_rows
from support.with_rooms import work_into

from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import PlannedBatch, Remedies
from pgonce.sink.foreach_batch.batch_transaction import BatchTransaction, Steps
from pgonce.sink.options.destination import Destination
from pgonce.sink.staging import StagingTable
from pgonce.sink.writing.rows import Rows

Values = Sequence[tuple[int, str]]


def quoted(name: str) -> str:
    """A name as SQL takes it, whatever is in it."""
    return sql.Identifier(name).as_string(None)


def commit(
    url: str,
    batch: PlannedBatch,
    destination: Destination,
    rows: Values = ((1, "one"), (2, "two")),
    *,
    names: Sequence[str] = ("id", "name"),
    staged: bool = False,
    sink_name: str | None = None,
    **remedies: Any,
) -> Verdict:
    """Commit rows of two columns, as the Data Source's commit worker would; ``remedies`` are fields of Remedies."""
    table = StagingTable(batch.query_id, sink_name or destination.table, batch.run_id, batch.batch_id)
    sent = staged_rows(url, table, _columns(names), rows) if staged else inline(rows, names)
    settings = CommitSettings(url, Remedies(**remedies), lock_timeout=2, retry_timeout=0)
    return commit_batch(settings, batch, work_into(sink_name, destination, sent))


def commit_function(url: str, batch: PlannedBatch, name: str, work: Callable[..., None]) -> None:
    """Commit what a transactional function of this name does, with its transaction and with psycopg's connection."""

    def publish(connection: Connection, of: PlannedBatch, _: Any) -> Published:
        work(BatchTransaction(connection, of, Steps(connection), EVERY_ROOM), driver_connection(connection))
        return Published(1, "function")

    commit_batch(CommitSettings(url, retry_timeout=0), batch, Work(lambda _: name, publish, sealed=True))


def inline(rows: Values, names: Sequence[str] = ("id", "name")) -> Rows:
    """Rows of a long and a text that travelled in commit messages."""
    return typed_rows(_columns(names), rows)


def _columns(names: Sequence[str]) -> Columns:
    return dict(zip(names, (t.LongType(), t.StringType()), strict=True))


def rows_in(connection: psycopg.Connection, table: str) -> list[tuple[Any, ...]]:
    """The rows of a table, given as SQL names it, in order."""
    return connection.execute(f"TABLE {table} ORDER BY 1".encode()).fetchall()


@contextmanager
def nothing_else_happens(admin: psycopg.Connection) -> Iterator[None]:
    """What this block writes changes no other table, setting or role."""
    before = _world(admin)
    yield
    assert _world(admin) == before


def _world(admin: psycopg.Connection) -> dict[str, Any]:
    admin.execute("CREATE TABLE IF NOT EXISTS public.canary AS SELECT 'alive' AS song")
    tables = admin.execute(
        "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S') AND n.nspname !~ '^(pg_|information_schema)' "
    ).fetchall()
    return {
        # Not what is in the ledger, and its staging tables, which batches make.
        "tables": {(schema, name) for schema, name in tables if schema not in ("pgonce", "pgonce_staging")},
        "canary": rows_in(admin, "public.canary"),
        "schemas": set(
            admin.execute(
                "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|pgonce$|pgonce_staging$)'"
            ).fetchall()
        ),
        "functions": admin.execute(
            "SELECT count(*) FROM pg_proc WHERE pronamespace::regnamespace::text <> 'pgonce'"
        ).fetchone(),
        "settings": admin.execute("SELECT * FROM pg_db_role_setting ORDER BY 1, 2").fetchall(),
        "superusers": admin.execute("SELECT rolname FROM pg_roles WHERE rolsuper ORDER BY 1").fetchall(),
    }
