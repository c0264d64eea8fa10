"""
A recovery is refused while there are signs that the query runs, and looks again once it has begun.

Covers: pgonce.recovery.fence.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import psycopg
import pytest
from support.ledger_history import RUN, publish, replay
from support.recoveries import recover_at_once
from support.stopped_query import entry, files_of, kafka, write_checkpoint

from pgonce.offsets_store.errors import RecoveryError
from pgonce.recovery import fence
from pgonce.recovery.recover import recover_checkpoint


class TestRunning:
    def refused(self, checkpoint, url, **patience):
        """The reason for which a recovery is refused; nothing was changed."""
        before = files_of(checkpoint)
        with pytest.raises(RecoveryError) as error:
            recover_checkpoint(str(checkpoint), url, **patience)
        assert error.value.code == "QUERY_RUNNING"
        assert files_of(checkpoint) == before
        return error.value.what

    def test_a_session_of_its_run(self, url, behind):
        """A commit that is under way is seen, and named."""
        with psycopg.connect(url, application_name=f"pgonce {RUN}"):
            assert "its run commits in session" in self.refused(behind, url, quiet_seconds=3600, wait_seconds=0)
        assert recover_at_once(behind, url).is_done

    def test_a_session_that_is_kept_for_later(self, url, behind):
        """Executors keep the sessions of a query in real time for minutes after it has stopped."""
        with psycopg.connect(url, application_name=f"pgonce {RUN}", autocommit=True) as kept:
            kept.execute("SELECT 1")
            assert recover_checkpoint(str(behind), url, quiet_seconds=0.5, wait_seconds=30).is_done

    def test_a_session_that_a_dead_host_left(self, url, behind, monkeypatch):
        """A transaction whose client is gone is no sign of life: it is ended as a commit ends it, and rolled back."""
        monkeypatch.setattr(fence, "_LOCK_SECONDS", 3.0)
        with psycopg.connect(url, application_name=f"pgonce {RUN}") as dead:
            dead.execute("SELECT FROM pgonce.writers FOR UPDATE")
            assert recover_checkpoint(str(behind), url, quiet_seconds=0.5, wait_seconds=30).is_done
            with pytest.raises(psycopg.OperationalError):
                dead.execute("SELECT 1")

    def test_a_copy_whose_rows_have_stopped(self, url, behind, monkeypatch):
        """A COPY is alive while bytes come; once they have stopped for long enough, its session is ended."""
        monkeypatch.setattr(fence, "_LOCK_SECONDS", 3.0)
        with psycopg.connect(url, application_name=f"pgonce {RUN}") as slow:
            slow.execute("CREATE TEMP TABLE rows (n int)")
            slow.execute("SELECT FROM pgonce.writers FOR UPDATE")
            with suppress(psycopg.OperationalError), slow.cursor().copy("COPY rows FROM STDIN") as copy:
                stopped = threading.Event()

                def send():
                    while not stopped.wait(0.1):
                        copy.write("1\n" * 40_000)

                thread = threading.Thread(target=send)
                thread.start()
                try:
                    said = self.refused(behind, url, quiet_seconds=2, wait_seconds=4)
                finally:
                    stopped.set()
                    thread.join()
                assert f"session {slow.info.backend_pid} (pgonce {RUN}" in said
                recovered = recover_checkpoint(str(behind), url, quiet_seconds=2, wait_seconds=60)
            assert recovered.is_done
            assert slow.broken

    def test_a_strangers_session_is_named_and_left_alone(self, url, behind, monkeypatch):
        """A row that stays locked stops the recovery; somebody who looks at it by hand is named."""
        monkeypatch.setattr(fence, "_LOCK_SECONDS", 3.0)
        with psycopg.connect(url, application_name="psql") as person:
            person.execute("SELECT FROM pgonce.writers FOR UPDATE")
            said = self.refused(behind, url, quiet_seconds=0)
            assert f"pid {person.info.backend_pid}, application 'psql'" in said
            person.execute("SELECT 1")

    def test_a_batch_published_a_moment_ago_shows_that_the_query_runs(self, url, behind, observer):
        """A batch published or skipped a moment ago is a sign."""
        for path in behind.rglob("*"):
            os.utime(path, (1, 1))
        said = self.refused(behind, url, quiet_seconds=3600, wait_seconds=0)
        assert "the ledger heard of it" in said
        assert "offsets/" not in said

    def test_a_file_written_a_moment_ago_shows_that_the_query_runs(self, url, admin, behind):
        admin.execute("UPDATE pgonce.writers SET updated_at = now() - interval '1 day'")
        said = self.refused(behind, url, quiet_seconds=3600, wait_seconds=0)
        assert "offsets/6 was written" in said
        assert "ledger" not in said

    def test_a_batch_skipped_a_moment_ago_shows_that_the_query_runs(self, url, admin, behind):
        """A run that only skips publishes nothing, and yet it runs."""
        batch = publish(url, 10, {"0": kafka(110)}, offset_log=entry(10))
        replay(url, batch)
        admin.execute("UPDATE pgonce.writers SET updated_at = now() - interval '1 day'")
        for path in behind.rglob("*"):
            os.utime(path, (1, 1))
        assert "the ledger heard of it" in self.refused(behind, url, quiet_seconds=3600, wait_seconds=0)

    def test_a_batch_that_is_published_meanwhile(self, url, behind, monkeypatch):
        """What was planned from is compared with what is locked."""
        monkeypatch.setattr(
            fence,
            "refuse_running",
            lambda *_, **__: publish(url, 10, {"0": kafka(110)}, run_id="another", offset_log=entry(10)),
        )
        assert "public.orders has moved" in self.refused(behind, url, quiet_seconds=0)

    def test_a_file_that_comes_meanwhile(self, url, behind, monkeypatch):
        """A batch that was planned while the fence was set stops the recovery; the second one repairs that too."""
        monkeypatch.setattr(
            fence, "refuse_running", lambda *_, **__: write_checkpoint(behind, {7: entry(7, planned=1)})
        )
        with pytest.raises(RecoveryError, match="QUERY_RUNNING"):
            recover_at_once(behind, url)
        monkeypatch.undo()
        assert recover_at_once(behind, url).stands_at == 9

    def test_of_two_recoveries_at_once_one_is_done(self, url, ahead):
        """Two people with one idea: one recovers, the other is refused or finds nothing left to do."""
        outcomes = []

        def one():
            try:
                outcomes.append(recover_at_once(ahead, url).is_done)
            except RecoveryError as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert True in outcomes
        assert set(outcomes) <= {True, False, "QUERY_RUNNING"}
        assert sorted(int(path.name) for path in (ahead / "offsets").glob("[0-9]*")) == list(range(6))
