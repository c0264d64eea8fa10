"""
The command ``pgonce doctor`` looks at a query's tables as its next commit will, and ``pgonce check --query`` does, too.

Covers: offsets_store.status.read_stored.
"""

from __future__ import annotations

import json

import pytest
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.committed_rows import settings
from support.ledger_history import QUERY
from support.routed_rows import routed, routes
from support.stopped_query import entry, kafka, write_checkpoint
from support.typed_rows import typed_rows
from support.with_rooms import work_into
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import CommitError
from pgonce.offsets_store.ledger.failures import Failed, failures_kept
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants
from pgonce.sink.options.destination import destination

COLUMNS = {"id": t.LongType(), "name": t.StringType()}


def publish(url, where, number=0, rows=None, columns=COLUMNS):
    """Batch N of the query, which reads ten records of Kafka."""
    batch = make_planned_batch(
        number,
        query_id=QUERY,
        query_name="orders",
        offset_log=entry(number),
        previous_offset_log=entry(number - 1) if number else None,
        start={"0": kafka(10 * number)},
        end={"0": kafka(10 * number + 10)},
    )
    return commit_batch(settings(url), batch, work_into(None, where, rows or typed_rows(columns, [(number, "a")])))


@pytest.fixture
def doctor(url, tmp_path, admin):
    """Run `pgonce doctor` on a stopped query that has published batch 0; give its result."""
    ensure_ledger(url)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text)")
    checkpoint = write_checkpoint(tmp_path / "ckpt", {0: entry(0)}, (0,))
    return lambda *more: CliRunner().invoke(app, ["doctor", str(checkpoint), "--url", url, *more])


@pytest.fixture
def check(url):
    """What `pgonce check --query` finds about tables, as (holds, says), and its exit code."""

    def ask(*more):
        shown = CliRunner().invoke(app, ["check", "--url", url, "--json", *more])
        return [(one["holds"], one["says"]) for one in json.loads(shown.stdout) if one["name"] == "table"]

    return ask


def test_by_the_name_of_the_query(url, doctor, tmp_path, admin):
    """The ledger knows where the checkpoint is; name, id and its beginning give what the path gives."""
    publish(url, destination("events", "upsert"))
    admin.execute("UPDATE pgonce.writers SET checkpoint_location = %s", [str(tmp_path / "ckpt")])
    by_path = doctor()

    def asked(query):
        return CliRunner().invoke(app, ["doctor", query, "--url", url])

    for query in ("orders", QUERY, QUERY[:8]):
        assert (asked(query).exit_code, asked(query).stdout) == (by_path.exit_code, by_path.stdout)
    assert "[QUERY_NOT_FOUND]" in asked("nothing").stderr
    (tmp_path / "ckpt").rename(tmp_path / "moved")
    elsewhere = asked("orders")
    assert elsewhere.exit_code == ExitCode.UNREADABLE
    assert "[CHECKPOINT_NOT_FOUND]" in elsewhere.stderr
    assert f"pgonce doctor {tmp_path / 'ckpt'}" not in elsewhere.stderr, "that would fail again"
    assert "pgonce doctor CHECKPOINT" in elsewhere.stderr
    assert "`recovering`" in elsewhere.stderr


def test_a_query_with_a_retired_sink(url, doctor, tmp_path, admin):
    """The checkpoint is looked for where the living sink had it last: what is known of the other one is old."""
    where = destination("events", "upsert")
    publish(url, where)
    admin.execute("CREATE TABLE audit (LIKE events)")
    publish(url, destination("audit"))
    place = "UPDATE pgonce.writers SET checkpoint_location = %s, retired_at = CASE WHEN %s THEN now() END WHERE "
    admin.execute(place + "sink_name = 'public.audit'", ["/where/it/was", True])
    admin.execute(place + "sink_name = 'public.events'", [str(tmp_path / "ckpt"), False])
    asked = CliRunner().invoke(app, ["doctor", "orders", "--url", url])
    assert (asked.exit_code, asked.stdout) == (doctor().exit_code, doctor().stdout)
    assert "Next start: batch 1" in asked.stdout


def test_a_table_that_takes_the_next_batch(url, doctor, check):
    """Doctor says that it has looked, with which columns, and what it has not looked at."""
    publish(url, destination("events", "upsert"))
    found = doctor()
    assert found.exit_code == ExitCode.OK, found.output
    assert "  table public.events: it can take rows with the columns of batch 0." in found.stdout
    assert "Not checked: the privileges of the query's role" in found.stdout
    ((holds, says),) = check("--query", "orders")
    assert (holds, "batch 0" in says) == ("holds", True)


def test_a_table_that_was_made_again(url, admin, doctor, check):
    """Rows of earlier batches are not in it, and a query that pins its table would be refused."""
    publish(url, destination("events"))
    admin.execute("DROP TABLE events; CREATE TABLE events (id bigint PRIMARY KEY, name text)")
    shown = doctor().stdout
    assert "public.events is not the table" in shown
    assert "With pinTable, the next batch is refused." in shown
    ((holds, says),) = check("--query", "orders")
    assert (holds, "public.events is not the table" in says) == ("holds", True)


def test_a_table_that_the_next_batch_would_create(url, admin, doctor):
    """Then it has nothing of the earlier batches."""
    publish(url, destination("events", create_table=True))
    admin.execute("ALTER TABLE events RENAME TO older")
    assert "table public.events: it is not there, and the next batch creates it, without the rows" in doctor().stdout


def test_a_folder_of_the_querys_name(url, doctor, admin, tmp_path, monkeypatch):
    """It is no checkpoint, and so the query is meant."""
    publish(url, destination("events"))
    admin.execute("UPDATE pgonce.writers SET checkpoint_location = %s", [str(tmp_path / "ckpt")])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "orders").mkdir()
    shown = CliRunner().invoke(app, ["doctor", "orders", "--url", url])
    assert (shown.exit_code, shown.stdout) == (doctor().exit_code, doctor().stdout)


def test_the_last_failure_is_told_until_the_next_published_batch(url, admin, doctor):
    """It is told with its batch and code until the sink publishes a batch; a failure before that is over."""
    publish(url, destination("events"))
    assert "Last failure" not in doctor().stdout
    failed = Failed(seen_by="commit", query_id=QUERY, sink_name="public.events", batch_id=1)
    with pytest.raises(CommitError), failures_kept(url, failed):
        raise CommitError("GAP", "Batches are missing.", "Nothing was written.", "See the docs.")
    shown = doctor().stdout
    assert "Last failure (batch 1, 20" in shown
    assert "UTC): GAP, " in shown
    publish(url, destination("events"), 1)
    assert "Last failure" not in doctor().stdout


@pytest.mark.parametrize(
    ("ddl", "code"),
    [
        ("ALTER TABLE events RENAME name TO title", "COLUMN_UNKNOWN"),
        ("ALTER TABLE events SET UNLOGGED", "TARGET_NOT_DURABLE"),
    ],
)
def test_a_table_that_refuses_it(url, admin, doctor, check, ddl, code):
    """What would stop the next batch is said, although checkpoint and ledger agree; a person must decide."""
    publish(url, destination("events"))
    assert doctor().exit_code == ExitCode.OK
    admin.execute(ddl)
    found = doctor()
    assert found.exit_code == ExitCode.NEEDS_PERSON
    assert f"  table public.events: {code}, " in found.stdout
    assert f"But the next batch into public.events is refused ({code})" in found.stdout
    (table,) = json.loads(doctor("--json").stdout)["tables"]
    assert (table["table"], table["code"]) == ("public.events", code)
    ((holds, _),) = check("--query", QUERY)
    assert holds == "does not hold"


def test_what_changes_is_recorded_again(url, admin, doctor):
    """Each batch leaves the record as its own columns are; one that changes nothing about it does not write it."""
    publish(url, destination("events"))
    written = "SELECT xmin::text, written_as FROM pgonce.writers"
    first = admin.execute(written).fetchone()[1]
    publish(url, destination("events"), 1)
    assert admin.execute(written).fetchone()[1] == first
    publish(url, destination("events"), 2, typed_rows({"id": t.LongType()}, [(2,)]))
    second = admin.execute(written).fetchone()[1]
    assert second["digest"] != first["digest"]
    assert [column["name"] for column in second["tables"]["public.events"]["columns"]] == ["id"]


def test_each_table_of_a_route(url, admin, doctor):
    """Those that got no rows in the last batch are looked at as well."""
    admin.execute("CREATE TABLE orders (id bigint, name text); CREATE TABLE clicks (id bigint, name text)")
    where = routes({"orders": {"columns": ["id", "name"]}, "clicks": {"columns": ["id", "name"]}})
    publish(url, where, rows=routed(("orders", 1, "a")))
    admin.execute("ALTER TABLE clicks DROP name")
    shown = doctor().stdout
    assert "table public.clicks: COLUMN_UNKNOWN" in shown
    assert "table public.orders: it can take rows" in shown


def test_a_query_without_a_record_of_its_writing_is_not_called_healthy(url, admin, doctor, check):
    """A query whose batches have left no record is not called healthy without a word."""
    publish(url, destination("events"))
    admin.execute("UPDATE pgonce.writers SET written_as = NULL")
    assert "table public.events: not checked: no batch has recorded how its rows were written." in doctor().stdout
    ((holds, says),) = check("--query", "orders")
    assert (holds, "recorded" in says) == ("not known", True)


def test_privileges_count_for_check(url, admin, doctor, check, login):
    """Check runs under the query's role, so what the role lacks is found; doctor may run under another."""
    publish(url, destination("events", "complete"))
    for grant in grants(login.user):
        admin.execute(grant)
    admin.execute(f"GRANT INSERT, SELECT ON events TO {login.user}")
    shown = CliRunner().invoke(app, ["check", "--url", login.url, "--json", "--query", "orders"])
    (table,) = (one for one in json.loads(shown.stdout) if one["name"] == "table")
    assert table["holds"] == "does not hold"
    assert table["remedy"].startswith("GRANT DELETE ON")


@pytest.mark.parametrize("number", ["9223372036854775807", "99999999999999999999"])
def test_a_stray_file_among_the_offsets_is_named(number, url, doctor, tmp_path):
    """No batch of Spark has such a number, and no table of the ledger takes it."""
    publish(url, destination("events", "upsert"))
    (tmp_path / "ckpt" / "offsets" / number).write_text("v1")
    shown = doctor()
    assert "[CHECKPOINT_MALFORMED]" in shown.stderr
    assert f"offsets/{number}" in shown.stderr
