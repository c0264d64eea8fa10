"""A table that a role registers as a staging table is dropped only if it is one."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from support.ledger_history import KAFKA, QUERY, publish

from pgonce.sink.staging import StagingTable, sweep


@pytest.fixture
def admin(admin, url):
    """A connection that may do anything; a query has published a batch."""
    publish(url, 0, KAFKA)
    return admin


def register(admin: psycopg.Connection, name: str) -> None:
    """What any role that shares the ledger may write."""
    admin.execute(
        "INSERT INTO pgonce.staged_tables (table_name, query_id, sink_name, run_id, batch_id) "
        "VALUES (%s, %s, 'public.orders', 'run', 0)",
        [name, QUERY],
    )


def exists(admin: psycopg.Connection, name: str) -> bool:
    """Whether there is such a staging table."""
    in_schema = "SELECT count(*) FROM pg_class WHERE relnamespace = 'pgonce_staging'::regnamespace AND relname = %s"
    return admin.execute(in_schema, [name]).fetchone() == (1,)


@pytest.mark.parametrize("name", ["tombstones", "odd name", "staged_x_1", 'a"; DROP TABLE b'])
def test_the_sweep_drops_no_other_table(admin, name):
    """Roles that share a ledger may register any name: the registration goes, and nothing else."""
    admin.execute(sql.SQL("CREATE TABLE pgonce_staging.{} ()").format(sql.Identifier(name)))
    register(admin, name)
    sweep(admin, QUERY, "public.orders", "run", 0)
    assert exists(admin, name)
    assert admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone() == (0,)


def test_the_sweep_drops_a_staging_table(admin):
    """By the name that its tasks have given it."""
    name = StagingTable(QUERY, "public.orders", "run", 0).name
    admin.execute(f"CREATE TABLE pgonce_staging.{name} ()".encode())
    register(admin, name)
    sweep(admin, QUERY, "public.orders", "run", 0)
    assert not exists(admin, name)
