"""A commit drops the staging tables that nobody needs any more, also those that a task of an older run makes late."""

from __future__ import annotations

import time
from dataclasses import replace
from traceback import walk_stack

import psycopg
import pyarrow as pa
import pytest
from support.committed_rows import STRUCT, TABLE
from support.data_source_with_rooms import commit_job_parcels, commit_parcels, plan_job
from support.fixtures.postgres import url_with
from support.received_batch import body, origin

from pgonce.offsets_store.errors import PgonceError, TargetError
from pgonce.sink.data_source import commit_parcels as module
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.data_source.stager import Stager
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.planned_batch import staging_table
from pgonce.sink.writing import first_look


@pytest.fixture
def options(receiver_options):
    """No receiver: rows come inline."""
    return receiver_options(receiver="off", inlineBytes="1000")


def commit(options, number):
    """A small batch, whose rows come inline."""
    row, _ = body(number)
    parcel = Parcel(origin(number), 0, 1, inline=(row,))
    commit_parcels(options, encoded_columns(STRUCT), [parcel], number)


def stage_late(options, number, run="the run before"):
    """A task of a run that was stopped a minute ago stages a row; the driver had planned its batch before that."""
    before = replace(origin(number, run), planned_by_ms=int(time.time() * 1000) - 60_000)
    row = pa.record_batch({"id": pa.array([99], pa.int64()), "name": pa.array(["late"])})
    Stager(options.staging_url, staging_table(options, before), STRUCT, 9, 10).stage(iter([row]))


def test_what_an_older_runs_task_stages_after_the_sweep_goes_with_a_later_batch(target, options, monkeypatch):
    """The sweep of a run's first batch cannot see it; a later one does, and the rows are in no table."""
    commit(options, 1)
    stage_late(options, 1)
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.0)
    commit(options, 2)
    assert target.execute("SELECT table_name FROM pgonce.staged_tables").fetchall() == []
    assert target.execute("SELECT id FROM events ORDER BY id").fetchall() == [(1,), (2,)]


def test_what_a_run_has_staged_that_called_the_table_otherwise_is_swept(target, receiver_options, monkeypatch):
    """The option says public.events now; it is the same writer, and only its own runs are meant."""
    monkeypatch.setattr(module, "SWEEP_SECONDS", 0.0)
    before, now = (receiver_options(receiver="off", inlineBytes="1000", table=t) for t in ("events", "public.events"))
    commit(before, 1)
    target.execute(
        "INSERT INTO pgonce.runs (writer_id, run_id, first_batch_id, started_at) "
        "SELECT writer_id, 'run A', 0, started_at - interval '1 hour' FROM pgonce.runs"
    )
    for run in ("run A", "another sink's run"):
        stage_late(before, 2, run)
    commit(now, 2)
    assert target.execute("SELECT run_id FROM pgonce.staged_tables").fetchall() == [("another sink's run",)]


def test_between_two_sweeps_a_batch_without_staged_rows_asks_nothing(target, options):
    """Many small batches a second cost no sweep each."""
    commit(options, 1)
    stage_late(options, 1)
    commit(options, 2)
    assert len(target.execute("SELECT table_name FROM pgonce.staged_tables").fetchall()) == 1


PUBLISHED_BEFORE = {
    "ALTER TABLE events DROP COLUMN name": "SKIPPED",
    "ALTER TABLE events ALTER name TYPE int USING 1": "SKIPPED",
    "ALTER TABLE events ADD needed int NOT NULL": "SKIPPED",
    "ALTER TABLE events SET UNLOGGED": "SKIPPED",
    "ALTER TABLE events RENAME TO events_of_november": "BATCH_ELSEWHERE",
    "DROP TABLE events": "BATCH_ELSEWHERE",
}


@pytest.mark.parametrize(
    ("since", "sink"),
    [*((since, None) for since in PUBLISHED_BEFORE), ("ALTER TABLE events DROP COLUMN name", "daily load: a.b.c.d")],
)
def test_a_job_that_is_published_is_not_refused_for_what_its_table_has_become(admin, url, since, sink, monkeypatch):
    """Its rows are there, and so the commit skips it, or says where they are; a job with another key is refused."""
    admin.execute(TABLE)

    def run(key):
        monkeypatch.setattr(first_look, "_seen_to_fit", set())
        how = {"url": url, "table": "events", "batchKey": key, **({"sinkName": sink} if sink else {})}
        options, run, writer = plan_job(how, STRUCT, overwrite=False)
        return commit_job_parcels(options, writer.columns, [Parcel(run, 0, 0)]).name

    assert run("monday") == "PUBLISHED"
    admin.execute(f"DELETE FROM events; {since}".encode())
    try:
        found = run("monday")
    except PgonceError as error:
        found = error.code
    assert found == PUBLISHED_BEFORE[since]
    with pytest.raises(TargetError, match="Nothing of this job was written") as refused:
        run("tuesday")
    assert "offsets" not in str(refused.value)


def staged_by_a_job(url):
    """A batch job of two rows, of which Postgres says along the search_path where they go; a task has staged them."""
    how = {"url": url, "table": "events", "batchKey": "monday"}
    options, run, writer = plan_job(how, STRUCT, overwrite=False)
    rows = pa.record_batch({"id": pa.array([1, 2], pa.int64()), "name": pa.array(["a", "b"])})
    marks = Stager(options.staging_url, staging_table(options, run), STRUCT, 0, 1).stage(iter([rows]))
    return options, writer.columns, [Parcel(run, 0, 2, staged=marks)]


def test_a_job_for_a_table_in_another_schema_keeps_what_it_has_staged(admin, url):
    """Both jobs say table=events and have one key, but another search_path: the first commit sweeps only its own."""
    admin.execute(f"{TABLE}; CREATE SCHEMA app; CREATE TABLE app.events (LIKE events)".encode())
    jobs = [staged_by_a_job(to) for to in (url, url_with(url, options="-csearch_path=app"))]
    for left, job in ((1, jobs[0]), (0, jobs[1])):
        commit_job_parcels(*job)
        assert admin.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone() == (left,)
    for table in ("public.events", "app.events"):
        assert admin.execute(f"SELECT id FROM {table} ORDER BY id".encode()).fetchall() == [(1,), (2,)]


# Spark calls the first one through StreamWriter.commit, which has one frame at the border.
WAY_OF_A_ROW = [
    "commit_parcels",
    "commit_batch",
    "tried",
    "publish_or_skip",
    "_publish_in_tx",
    "write_rows_in_tx",
    "write_batch_in_tx",
    "write_table_in_tx",
    "_write_all_in_tx",
    "copy_in_tx",
    "copy_rows",
]


def test_the_way_of_a_row_from_spark_to_copy(target, options, monkeypatch):
    """Each function on it has a name that says what it does, and there are few."""
    seen, write = [], psycopg.Copy.write

    def seen_write(copy, data):
        frames = (frame for frame, _ in walk_stack(None) if frame.f_globals["__name__"].startswith("pgonce."))
        seen.append([frame.f_code.co_name for frame in frames])
        return write(copy, data)

    monkeypatch.setattr(psycopg.Copy, "write", seen_write)
    commit(options, 1)
    assert [list(reversed(names)) for names in seen] == [WAY_OF_A_ROW] * len(seen)
    assert seen
    assert len(WAY_OF_A_ROW) + 2 <= 14
