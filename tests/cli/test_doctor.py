"""The command ``pgonce doctor``: how a query is named, and what is told besides the comparison."""

from __future__ import annotations

import json

import pytest
from support.ledger_history import QUERY
from support.published_query import publish
from support.stopped_query import entry, write_checkpoint
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.errors import CommitError
from pgonce.offsets_store.ledger.failures import Failed, failures_kept
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.options.destination import destination


@pytest.fixture
def doctor(url, tmp_path, admin):
    """Run `pgonce doctor` on a stopped query that has published batch 0; give its result."""
    ensure_ledger(url)
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text)")
    checkpoint = write_checkpoint(tmp_path / "ckpt", {0: entry(0)}, (0,))
    return lambda *more: CliRunner().invoke(app, ["doctor", str(checkpoint), "--url", url, *more])


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


def test_tables_are_not_looked_at(url, doctor, admin):
    """The answer says so, and which command looks at them; of a query that the ledger does not know, nothing does."""
    assert "Not looked at" not in doctor().stdout
    publish(url, destination("events", "upsert"))
    admin.execute("DROP TABLE events")
    found = doctor()
    assert found.exit_code == ExitCode.OK, found.output
    assert f"Not looked at: the query's tables. `pgonce check --query {QUERY}` looks at them" in found.stdout
    assert "tables" not in json.loads(doctor("--json").stdout)


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


@pytest.mark.parametrize("number", ["9223372036854775807", "99999999999999999999"])
def test_a_stray_file_among_the_offsets_is_named(number, url, doctor, tmp_path):
    """No batch of Spark has such a number, and no table of the ledger takes it."""
    publish(url, destination("events", "upsert"))
    (tmp_path / "ckpt" / "offsets" / number).write_text("v1")
    shown = doctor()
    assert "[CHECKPOINT_MALFORMED]" in shown.stderr
    assert f"offsets/{number}" in shown.stderr
