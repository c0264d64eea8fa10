"""A table that a role registers as a staging table is dropped only if it is one."""

from __future__ import annotations

import pytest
from psycopg import sql
from support.ledger_history import KAFKA, QUERY, publish

from pgonce.sink.staging import sweep


@pytest.mark.parametrize("name", ["tombstones", "odd name", "staged_x_1", 'a"; DROP TABLE b'])
def test_the_sweep_drops_no_other_table(url, admin, name):
    """Roles that share a ledger may register any name: the registration goes, and nothing else."""
    publish(url, 0, KAFKA)
    admin.execute(sql.SQL("CREATE TABLE pgonce_staging.{} ()").format(sql.Identifier(name)))
    admin.execute(
        "INSERT INTO pgonce.staged_tables (table_name, query_id, sink_name, run_id, batch_id) "
        "VALUES (%s, %s, 'public.orders', 'run', 0)",
        [name, QUERY],
    )
    sweep(admin, QUERY, "public.orders", "run", 0)
    in_schema = "SELECT count(*) FROM pg_class WHERE relnamespace = 'pgonce_staging'::regnamespace AND relname = %s"
    assert admin.execute(in_schema, [name]).fetchone() == (1,)
    assert admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone() == (0,)
