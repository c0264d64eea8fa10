"""
No lock of ours is waited for without a bound, and the one that waits is told who holds it.

Covers: offsets_store.postgres.lock_watch.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager

import psycopg
import pytest
from support.batches import make_batch
from support.committed_rows import TABLE, appending, ids, settings, stage_one

from pgonce.cli import main
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger import migrations, session
from pgonce.offsets_store.ledger.migrations import LOCK_KEY, ensure_ledger
from pgonce.offsets_store.postgres.lock_watch import WHO
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.staging import StagingTable, sweep

STAGED = StagingTable("q1", "events", "run 1", 1)


@contextmanager
def held(url, statement, *parameters, seconds=None):
    """Somebody's transaction that holds a lock: for the block, or for so many seconds."""
    with psycopg.connect(url, application_name="somebody") as holder:
        holder.execute(statement, parameters)
        if seconds is not None:
            threading.Timer(seconds, holder.rollback).start()
        yield f"pid {holder.info.backend_pid}, application 'somebody'"


def migrating(url, **patience):
    """Somebody holds the lock under which the ledger is made."""
    return held(url, "SELECT pg_advisory_xact_lock(%s)", LOCK_KEY, **patience)


def creating(url, **patience):
    """Somebody holds the lock under which the staging table is made."""
    return held(url, "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", STAGED.name, **patience)


class TestTheLedger:
    @pytest.fixture(autouse=True)
    def _hasty(self, monkeypatch):
        """Ten seconds are long for a test."""
        for module in (migrations, main):
            monkeypatch.setattr(module, "LOCK_SECONDS", 2.0)

    def test_a_first_commit_waits_for_a_migration(self, url, admin, caplog):
        """It tries again, and the log says whose lock it is."""
        admin.execute(TABLE)
        with migrating(url, seconds=4) as holder:
            assert commit_batch(settings(url, retry_timeout=60), make_batch(0), appending(1)) is Verdict.NEW
        assert any(holder in record.getMessage() for record in caplog.records)
        assert ids(admin) == [1]

    def test_past_the_bound_it_is_named(self, url, admin):
        """The query fails, and names the holder."""
        admin.execute(TABLE)
        with migrating(url) as holder, pytest.raises(PgonceError, match=r"\[LOCKED\]") as error:
            commit_batch(settings(url, retry_timeout=1), make_batch(0), appending(1))
        assert holder in str(error.value)

    def test_what_is_missing_to_see_the_holder(self, url, admin, login):
        """A role that may not see other roles' sessions is told which role could."""
        with migrating(url), psycopg.connect(login.url, autocommit=True) as other:
            (said,) = other.execute(
                f"SELECT {WHO} FROM pg_stat_activity AS a WHERE a.application_name = 'somebody'"
            ).fetchone()
        assert "pg_read_all_stats" in said
        assert "SELECT" not in said

    def test_init_says_who_holds_it(self, url, pgonce):
        """The command fails soon, and names the holder."""
        with migrating(url) as holder:
            failed = pgonce("init")
        assert "[LOCKED]" in failed.stderr
        assert holder in failed.stderr

    def test_who_only_reads_waits_no_longer(self, url, monkeypatch):
        """A lock that keeps readers out of the ledger is an error after the bound."""
        ensure_ledger(url)
        monkeypatch.setattr(session, "LOCK_SECONDS", 0.3)
        with (
            held(url, "LOCK TABLE pgonce.writers IN ACCESS EXCLUSIVE MODE"),
            pytest.raises(PgonceError, match=r"\[LOCKED\]"),
        ):
            OffsetsStore(url).status()


@pytest.mark.usefixtures("ledger")
class TestStaging:
    def test_a_task_waits_and_goes_on(self, url, caplog):
        """It tries again, and the log says whose lock it is."""
        with creating(url, seconds=4) as holder:
            assert [count for _, count in stage_one(url, retry_timeout=60, lock_timeout=2.0)] == [1]
        said = [record.getMessage() for record in caplog.records]
        assert any(f"waiting for a lock held by: {holder}" in line for line in said)
        assert any("staging again in" in line for line in said)

    def test_past_the_bound_it_is_named(self, url):
        """The task fails, and names the holder."""
        with creating(url) as holder, pytest.raises(PgonceError, match=r"\[STAGING_FAILED\]") as error:
            stage_one(url, retry_timeout=1, lock_timeout=2.0)
        assert holder in str(error.value)

    def test_the_sweep_waits_for_nobody(self, url, admin):
        """What keeps it from the list of tables is left to the next sweep, not waited for."""
        locked = held(url, "LOCK TABLE pgonce.staged_tables IN ACCESS EXCLUSIVE MODE")
        with locked, pytest.raises(psycopg.errors.LockNotAvailable):
            sweep(admin, "q1", "events", "run 1", 1)
