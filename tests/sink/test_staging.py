"""Of the staged rows, Postgres picks those that were promised and are not stored yet; and when jobs' tables go."""

from __future__ import annotations

import threading
import uuid

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import types as t
from support.typed_rows import staged_rows

from pgonce.offsets_store.postgres.connect import connect
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.staging import OF_JOB, StagedRows, StagingTable, drop_staging_table, sweep, sweep_jobs

TABLE = StagingTable("query", "events", "run", 7)
# Names that need quotes, since they are people's own.
NAMES = ('the "topic"', "partition", "offset")
COLUMNS = dict(zip(NAMES, (t.StringType(), t.IntegerType(), t.LongType()), strict=True))
pytestmark = pytest.mark.usefixtures("ledger")


def wanted(admin, staged):
    """The rows that a commit would take."""
    names = sql.SQL(", ").join(map(sql.Identifier, NAMES))
    statement = sql.SQL("SELECT {} FROM {} WHERE {} ORDER BY 1, 2, 3").format(names, TABLE.identifier, staged.wanted)
    return admin.execute(statement).fetchall()


def test_rows_below_the_end_of_their_own_partition_are_left_out(admin, url):
    """Those of a partition, or a topic, of which nothing is stored are wanted; those of other attempts never are."""
    old = [("orders", 0, 4), ("orders", 11, 9), ("it's 1 refund", 1, 2)]
    new = [("it's 1 refund", 1, 3), ("orders", 0, 5), ("orders", 1, 0), ("orders", 11, 10), ("unheard of", 0, 0)]
    staged_rows(url, TABLE, COLUMNS, old + new)
    staged_rows(url, TABLE, COLUMNS, [("orders", 5, 5)], attempt=4)
    stored = {"0": {"orders": {"0": 5, "11": 10}, "it's 1 refund": {"1": 3}}}
    columns = PositionColumns(*NAMES, written=True)
    staged = StagedRows(TABLE, ((3, len(old + new)),), columns, stored)
    assert wanted(admin, staged) == new
    assert staged.count_dropped(admin) == len(old)
    assert wanted(admin, StagedRows(TABLE, ((3, len(old + new)),), columns)) == sorted(old + new)


def job_table(key, label, run):
    """The staging table of one run of a job."""
    return StagingTable(OF_JOB + key, label, str(run), 0)


def stage(url, table):
    """Put a row into a staging table."""
    staged_rows(url, table, {"id": t.LongType()}, [(1,)])


def staged_for(url, key, label="public.events"):
    """A run of this job that has staged a row: its id."""
    run = uuid.uuid4()
    stage(url, job_table(key, label, run))
    return run


def publish(admin, key, sink="public.events"):
    """Record a key as published, by some run."""
    admin.execute(
        "INSERT INTO pgonce.batch_jobs (sink_name, batch_key, attempt) VALUES (%s, %s, %s)", [sink, key, uuid.uuid4()]
    )


def runs_with_tables(admin):
    """The runs whose staging tables are there, as the ledger says and as the catalogue says."""
    there = {name for (name,) in admin.execute("SELECT relname FROM pg_class WHERE relname LIKE 'staged\\_%\\_0'")}
    registered = dict(admin.execute("SELECT table_name, run_id FROM pgonce.staged_tables").fetchall())
    assert there == registered.keys()
    return set(registered.values())


def sweep_events(url, run="another run"):
    """What the commit of any job of this sink does when it is done."""
    with connect(url, autocommit=True) as connection:
        sweep_jobs(connection, "public.events", str(run))


def test_tables_of_published_keys_are_swept(admin, url):
    """A run that staged for such a key can only be skipped; tables of all other keys, sinks and streams are kept."""
    staged_for(url, "done")
    killed = {str(staged_for(url, "killed")), str(staged_for(url, "killed"))}
    others = {str(staged_for(url, "done", label="app.events")), str(staged_for(url, "done", label="events")), "run 1"}
    stage(url, StagingTable("query", "events", "run 1", 0))
    publish(admin, "done")
    sweep_events(url)
    assert runs_with_tables(admin) == killed | others
    # Once a later run has published that key, too, nothing of it is left.
    publish(admin, "killed")
    sweep_events(url)
    assert runs_with_tables(admin) == others


def test_a_run_sweeps_its_own_table_whatever_the_sink_was_called(admin, url):
    """The table may have got another name since the run was planned."""
    run = staged_for(url, "monday", label="public.was_called_so")
    sweep_events(url, run)
    assert runs_with_tables(admin) == set()


def test_a_run_that_is_given_up_leaves_nothing(admin, url):
    """Its table is dropped at once; what a dying task of it stages afterwards goes once its key is published."""
    run = staged_for(url, "monday")
    table = job_table("monday", "public.events", run)
    with connect(url, autocommit=True) as connection:
        drop_staging_table(connection, table.name)
    assert runs_with_tables(admin) == set()
    stage(url, table)
    sweep_events(url)
    assert runs_with_tables(admin) == {str(run)}
    publish(admin, "monday")
    sweep_events(url)
    assert runs_with_tables(admin) == set()


def test_a_table_that_is_written_to_is_left_for_the_next_sweep(admin, url):
    """A task that is being killed may still hold it: nobody waits for long."""
    run = staged_for(url, "monday")
    table = job_table("monday", "public.events", run)
    with psycopg.connect(url) as writing:
        writing.execute(f"LOCK TABLE {table.qualified_name} IN ROW EXCLUSIVE MODE".encode())
        with connect(url, autocommit=True) as connection:
            drop_staging_table(connection, table.name)
        assert runs_with_tables(admin) == {str(run)}
    publish(admin, "monday")
    sweep_events(url)
    assert runs_with_tables(admin) == set()


def test_a_table_of_another_role_keeps_no_other(admin, url, login, caplog):
    """A password is rotated with two roles, and a run that was killed has left a table of the older one."""
    first, second = staged_for(url, "monday"), staged_for(url, "tuesday")
    admin.execute(
        f"GRANT ALL ON ALL TABLES IN SCHEMA pgonce TO {login.user}; GRANT USAGE ON SCHEMA pgonce TO {login.user}"
    )
    admin.execute(f"GRANT USAGE, CREATE ON SCHEMA pgonce_staging TO {login.user}")
    tables = [job_table(key, "public.events", run) for key, run in (("monday", first), ("tuesday", second))]
    admin.execute(f"ALTER TABLE {tables[1].qualified_name} OWNER TO {login.user}".encode())
    with connect(login.url, autocommit=True) as connection:
        for table in tables:
            drop_staging_table(connection, table.name)
    assert runs_with_tables(admin) == {str(first)}
    assert f"{tables[0].qualified_name} belongs to another role" in caplog.text


def test_a_streams_sweep_leaves_the_tables_of_jobs(admin, url):
    """Its rule is about batch ids, which jobs do not have."""
    run = staged_for(url, "monday")
    with connect(url, autocommit=True) as connection:
        sweep(connection, "batchKey", "events", "run 1", 10)
    assert runs_with_tables(admin) == {str(run)}


def test_runs_stage_side_by_side(admin, url):
    """Two schedulers with one key: each has its own table, and the sweep after the first one's commit takes both."""
    threads = [threading.Thread(target=staged_for, args=[url, "monday"]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(runs_with_tables(admin)) == 2
    publish(admin, "monday")
    sweep_events(url)
    assert runs_with_tables(admin) == set()
