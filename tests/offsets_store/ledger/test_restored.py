"""A ledger that was restored from a dump knows tables by their names, and takes no other table for them."""

from __future__ import annotations

import logging

import psycopg
import pytest
from support.applied_changes import DELETE, WRITE, apply
from support.committed_rows import commit_rows
from support.restored_dump import restore_ledger

from pgonce.offsets_store.errors import LedgerError, RefusedBatch
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.session import writing
from pgonce.offsets_store.ledger.writers import IS_LIVING, feeds, writers_in_tx

TABLE = "CREATE TABLE {} (id bigint PRIMARY KEY, name text, seq bigint)"


@pytest.fixture
def restored(other_url):
    """A superuser's connection to a second database, which has had other tables before: its oids are others."""
    with psycopg.connect(other_url, autocommit=True) as connection:
        yield connection


def oid_of(connection, name):
    """The oid of a table."""
    return connection.execute("SELECT %s::regclass::oid", [name]).fetchone()[0]


def test_a_ledger_at_home_is_left_alone(url, admin, caplog):
    """Also after its tables were frozen, rewritten and analyzed."""
    ensure_ledger(url)
    before = admin.execute("SELECT * FROM pgonce.home").fetchall()
    for statement in ("VACUUM (FREEZE) pgonce.home", "VACUUM (FULL, FREEZE) pgonce.home", "ANALYZE pgonce.home"):
        admin.execute(statement)
        with writing(url):
            pass
    assert admin.execute("SELECT * FROM pgonce.home").fetchall() == before
    assert "restored" not in caplog.text


def test_tombstones_are_found_by_name(url, admin, other_url, restored, caplog):
    """Those of a table that is not there are nobody's, though another table has its oid now."""
    ensure_ledger(url)
    admin.execute((TABLE.format("events") + ";" + TABLE.format("dropped")).encode())
    for table in ("events", "dropped"):
        apply(url, (1, None, 10, DELETE), only_newer=True, table=table)
    admin.execute("DROP TABLE dropped")
    restored.execute((TABLE.format("innocent") + ";" + TABLE.format("events")).encode())
    oids = f"UPDATE pgonce.tombstone_sets SET target = {oid_of(restored, 'innocent')} WHERE target_name ~ 'dropped'"
    admin.execute(oids.encode())
    with caplog.at_level(logging.WARNING, "pgonce"):
        restore_ledger(url, other_url)
        ensure_ledger(other_url)
    assert "restored from a dump" in caplog.text
    assert apply(other_url, (1, "old", 5, WRITE), only_newer=True) == {"passed_over": 1}
    assert apply(other_url, (1, "new", 5, WRITE), only_newer=True, table="innocent") == {"written": 1}
    assert restored.execute("SELECT target_name FROM pgonce.tombstone_sets").fetchall() == [("public.events",)]


def test_a_writers_tables_are_found_by_name(url, admin, other_url, restored):
    """Who feeds a table is known by its name; who fed one that is not there feeds no other."""
    admin.execute((TABLE.format("events") + ";" + TABLE.format('"E.v"')).encode())
    commit_rows(url, "plain", 0, 1)
    commit_rows(url, "odd", 0, 1, table='"E.v"')
    restored.execute((TABLE.format("innocent") + ";" + TABLE.format("events")).encode())
    collides = {"public.events": oid_of(restored, "innocent"), 'public."E.v"': oid_of(restored, "events")}
    for name, oid in collides.items():
        admin.execute(
            "UPDATE pgonce.writers SET targets = jsonb_build_object(%s::text, %s::bigint) WHERE sink_name = %s",
            [name, oid, name],
        )
    restore_ledger(url, other_url)
    # A running process meets the restored database when it gets a new session.
    with writing(other_url) as connection:
        driver = connection.connection.driver_connection
        for name, fed_by in (("events", ["plain"]), ("innocent", [])):
            table = {f"public.{name}": oid_of(driver, f"public.{name}")}
            found = writers_in_tx(connection, IS_LIVING, feeds(table))
            assert [writer.query_id for writer in found] == fed_by
    commit_rows(other_url, "plain", 1, 2, pin_table=True)
    commit_rows(other_url, "another", 0, 2, table="innocent")
    with pytest.raises(RefusedBatch):
        commit_rows(other_url, "another", 0, 2)
    assert restored.execute("SELECT targets FROM pgonce.writers WHERE query_id = 'odd'").fetchone() == (
        {'public."E.v"': 0},
    )


def test_a_role_that_may_only_act(url, admin, login, pgonce):
    """It is told what has to come before, which `pgonce init` does as well as a query."""
    ensure_ledger(url)
    admin.execute(
        f"GRANT USAGE ON SCHEMA pgonce TO {login.user}; GRANT SELECT ON ALL TABLES IN SCHEMA pgonce TO {login.user}"
    )
    admin.execute("UPDATE pgonce.home SET written_in = 0")
    with pytest.raises(LedgerError, match="LEDGER_RESTORED"), writing(login.url):
        pass
    assert pgonce("init").exit_code == 0
    with writing(login.url):
        pass
