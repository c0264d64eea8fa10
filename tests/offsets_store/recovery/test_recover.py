"""A stopped query's checkpoint and the ledger: mended, taken back, accepted, retired, written anew; and refusals."""

from __future__ import annotations

import inspect
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from support.ledger_history import OTHER, QUERY, RUN, publish, replay
from support.stopped_query import COMMIT, entries, entry, files_of, kafka, write_checkpoint
from typer.testing import CliRunner

from pgonce.offsets_store.checkpoint.files import ArrowFiles
from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.cli.main import app
from pgonce.offsets_store.cli.terms import ExitCode
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import (
    CheckpointError,
    ConfigurationError,
    ConnectError,
    LedgerError,
    RecoveryError,
)
from pgonce.offsets_store.ledger import ledger, migrations
from pgonce.offsets_store.ledger.migrations import NEWEST, Migration
from pgonce.offsets_store.offsets.positions import Span
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.recovery import fence, new_checkpoint, recover, still_running, undo
from pgonce.offsets_store.recovery.by_hand import accept_batch
from pgonce.offsets_store.recovery.diagnosis import Finding
from pgonce.offsets_store.recovery.doctor import examine
from pgonce.offsets_store.recovery.new_checkpoint import write_new_checkpoint
from pgonce.offsets_store.recovery.recover import recover_checkpoint
from pgonce.offsets_store.recovery.undo import undo_recovery
from pgonce.offsets_store.verdict.decide import Verdict, decide
from pgonce.offsets_store.verdict.facts import Batch, Remedies
from pgonce.sink.foreach_batch.batch_writer import PostgresBatchWriter
from pgonce.sink.recover_and_start import recover_and_start


def history(url, last, texts=None, **identity):
    """Publish batches 0 to ``last`` with their entries."""
    texts = {**entries(*range(last + 1)), **(texts or {})}
    for number in range(last + 1):
        end = parse_offset_log(texts[number]).offsets
        batch = publish(url, number, end, offset_log=texts[number], **identity)
    return batch


def mend(checkpoint, url, **options):
    """Recover at once: what the test has written just now is no sign of a running query."""
    return recover_checkpoint(str(checkpoint), url, quiet_seconds=0, **options)


def verdict(url, checkpoint, batch_id, run_id, *, sink_name="public.orders"):
    """What a commit of this run would say to the batch that ``offsets/`` gives this number."""
    text = (checkpoint / "offsets" / str(batch_id)).read_text()
    before = (checkpoint / "offsets" / str(batch_id - 1)).read_text()
    batch = Batch(
        query_id=QUERY,
        sink_name=sink_name,
        run_id=run_id,
        batch_id=batch_id,
        attempt=uuid4(),
        offset_log=text,
        previous_offset_log=before,
        start=parse_offset_log(before).offsets,
        end=parse_offset_log(text).offsets,
        stateful=False,
    )
    with engine_for(url).begin() as connection:
        return decide(ledger.lock_writer_in_tx(connection, batch, None).ledger, batch, Remedies())


def noted(observer):
    """The interventions, in order: kind, batch, reason, details."""
    return observer.execute(
        "SELECT kind, batch_id, reason, details FROM pgonce.interventions ORDER BY intervention_id"
    ).fetchall()


@pytest.fixture
def behind(url, tmp_path):
    """A checkpoint that asynchronous progress tracking left sparse at batch 6; the ledger is at 9."""
    history(url, 9)
    return write_checkpoint(tmp_path / "ckpt", entries(0, 1, 6), (0, 1, 6))


@pytest.fixture
def ahead(url, tmp_path):
    """A checkpoint at batch 8, of which a restored database knows batches 0 to 5."""
    history(url, 5)
    return write_checkpoint(tmp_path / "ckpt", entries(*range(9)), range(9))


class TestRecover:
    def test_forward(self, url, behind):
        """The files are those that the ledger has recorded, without stale checksums; then there is nothing left."""
        done = mend(behind, url)
        assert (done.is_done, done.stands_at, done.written) == (True, 9, ("offsets/8", "offsets/9", "commits/9"))
        assert (behind / "offsets/8").read_text() == entry(8)
        assert (behind / "offsets/9").read_text() == entry(9)
        assert (behind / "commits/9").read_text() == COMMIT
        assert not mend(behind, url).is_needed

    def test_back(self, url, ahead):
        """What the ledger does not know is gone, with its checksums, and lies kept aside."""
        before = files_of(ahead)
        done = mend(ahead, url)
        gone = {f"{folder}/{name}" for folder in ("offsets", "commits") for n in (6, 7, 8) for name in (n, f".{n}.crc")}
        assert set(done.removed) == gone
        assert files_of(ahead) == {name: data for name, data in before.items() if name not in gone}
        kept = ahead / done.kept_in
        assert {name: (kept / name).read_bytes() for name in done.kept} == {name: before[name] for name in gone}

    def test_the_old_run_is_fenced_and_a_new_one_goes_on(self, url, ahead):
        """Whatever lives on after all is refused; a new run publishes the next batch."""
        mend(ahead, url)
        write_checkpoint(ahead, entries(6))
        assert verdict(url, ahead, 6, RUN) is Verdict.FENCED
        assert verdict(url, ahead, 6, "a new run") is Verdict.NEW

    def test_it_is_noted(self, url, behind, observer):
        """The ledger has a row with what was done, and the recovery as the owner."""
        done = mend(behind, url)
        ((kind, batch_id, _, details),) = noted(observer)
        assert (kind, batch_id) == ("recover", 9)
        assert details["files"] == ["offsets/8", "offsets/9", "commits/9"]
        (owner,) = observer.execute("SELECT run_id FROM pgonce.writers").fetchone()
        assert owner == details["recovery"]
        assert owner.startswith("recovery-")
        assert json.loads((behind / done.kept_in / "manifest.json").read_text())["recovery"] == owner

    def test_a_dry_run_changes_nothing(self, url, ahead, observer):
        """It says what would be done, and neither files nor ledger change."""
        before = files_of(ahead)
        shown = mend(ahead, url, dry_run=True)
        assert shown.is_needed
        assert not shown.is_done
        assert set(shown.kept) == set(shown.removed)
        assert files_of(ahead) == before
        assert not (ahead / "pgonce-kept").exists()
        assert noted(observer) == []
        assert observer.execute("SELECT run_id FROM pgonce.writers").fetchone() == (RUN,)

    def test_agreement_is_left_alone(self, url, tmp_path, observer):
        """Nothing to do is no reason to take the query from anybody, though it was busy a moment ago."""
        history(url, 5)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4,))
        assert not recover_checkpoint(str(checkpoint), url, wait_seconds=0).is_needed
        assert observer.execute("SELECT run_id FROM pgonce.writers").fetchone() == (RUN,)

    def test_before_the_first_start(self, url, tmp_path):
        """A call before every start does no harm where there is no checkpoint, no ledger, or no finished batch."""
        assert not recover_checkpoint(str(tmp_path / "none"), url).is_needed
        assert recover_checkpoint(str(tmp_path / "none"), url, dry_run=True).query_id is None
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(0))
        assert not recover_checkpoint(str(checkpoint), url, dry_run=True).is_needed
        assert not recover_checkpoint(str(checkpoint), url).is_needed

    def test_a_database_without_a_ledger_is_not_taken_for_an_empty_one(self, url, tmp_path):
        """A checkpoint with a past and a database without a ledger: the wrong database."""
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4, 5))
        with pytest.raises(LedgerError, match="NO_LEDGER"):
            recover_checkpoint(str(checkpoint), url, dry_run=True)

    def test_two_sinks_one_batch_apart(self, url, tmp_path):
        """The batch runs again: who has it skips it, the other publishes it."""
        history(url, 5)
        history(url, 4, sink_name="audit")
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(0, 1), (0, 1))
        mend(checkpoint, url)
        assert not (checkpoint / "commits/5").exists()
        assert verdict(url, checkpoint, 5, "new") is Verdict.REPLAY
        assert verdict(url, checkpoint, 5, "new", sink_name="audit") is Verdict.NEW

    @pytest.mark.parametrize("planned", [{}, {5: entry(5, kafka(87), planned=1)}], ids=["absent", "anew"])
    def test_the_last_batch_of_a_stateful_query(self, planned, url, tmp_path):
        """Its recorded entry is written, whole states go aside, all else stays; undone, every byte is as before."""
        history(url, 5, stateful=True)
        checkpoint = write_checkpoint(tmp_path / "ckpt", {**entries(3, 4), **planned}, (3, 4))
        whole = ["state/0/0/.6.zip.crc", "state/0/0/6.zip", "state/0/1/left-keyToNumValues/6.snapshot"]
        others = ["state/0/0/5.zip", "state/0/0/6.changelog", "state/0/0/SSTs/6.zip", "state/0/_metadata/metadata"]
        for name in [*whole, *others]:
            (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
            (checkpoint / name).write_text(name)
        before = files_of(checkpoint)
        found = examine(str(checkpoint), url)
        assert found.finding is Finding.RECOVERABLE
        assert "new Spark application" in found.advice
        done = mend(checkpoint, url)
        assert done.written == ("offsets/5",)
        assert set(done.removed) == {*whole, *(["offsets/.5.crc"] if planned else [])}
        assert (checkpoint / "offsets/5").read_text() == entry(5)
        assert [name for name in others if not (checkpoint / name).exists()] == []
        assert verdict(url, checkpoint, 5, RUN) is Verdict.FENCED
        assert verdict(url, checkpoint, 5, "new") is Verdict.REPLAY
        undo_recovery(str(checkpoint), url, quiet_seconds=0)
        assert files_of(checkpoint) == before

    def test_state_that_went_on(self, url, tmp_path):
        """Versions of state that only later batches can have made are found, and stop it."""
        history(url, 5, stateful=True)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(3, 4), (3, 4))
        (checkpoint / "state/0/3/right-keyToNumValues").mkdir(parents=True)
        (checkpoint / "state/0/3/right-keyToNumValues/7.delta").touch()
        with pytest.raises(RecoveryError, match="only batches after 5 can have made"):
            mend(checkpoint, url)

    def test_state_through_pyarrow(self, url, tmp_path, monkeypatch):
        """In a store that pyarrow.fs reads, the same files are found."""
        history(url, 5, stateful=True)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(3, 4), (3, 4))
        (checkpoint / "state/0/0/default").mkdir(parents=True)
        (checkpoint / "state/0/0/6.snapshot").touch()
        (checkpoint / "state/0/0/default/6.zip").touch()
        files = ArrowFiles("file:///", str(checkpoint), "gs://bucket/ckpt", has_secrets=False)
        monkeypatch.setattr(recover, "CheckpointWriter", lambda _: CheckpointWriter(files))
        assert set(mend("gs://bucket/ckpt", url).removed) == {"state/0/0/6.snapshot", "state/0/0/default/6.zip"}

    def test_a_first_entry_half_written(self, url, tmp_path, observer):
        """What is left of it is taken aside, from a query that nobody knows yet; undone, it is back."""
        checkpoint = write_checkpoint(tmp_path / "ckpt", {})
        (checkpoint / "offsets").mkdir()
        (checkpoint / f"offsets/.0.{uuid4()}.tmp").write_text("v1")
        before = files_of(checkpoint)
        assert examine(str(checkpoint), url).finding is Finding.RECOVERABLE
        with pytest.raises(RecoveryError, match=r"RECOVERY_RUNNING.*\.tmp was written"):
            recover_checkpoint(str(checkpoint), url, quiet_seconds=3600, wait_seconds=0)
        assert mend(checkpoint, url).is_done
        assert list(files_of(checkpoint)) == ["metadata"]
        assert observer.execute("SELECT count(*) FROM pgonce.writers").fetchone() == (0,)
        undo_recovery(str(checkpoint), url, quiet_seconds=0)
        assert files_of(checkpoint) == before

    def test_positions(self, url, tmp_path):
        """A writer that drops rows by position is moved back to an entry that is proven."""
        history(url, 3)
        stored = {"0": kafka(43)}
        publish(url, 4, None, start={"0": kafka(40)}, span=Span({"0": kafka(40)}, stored))
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(2, 3, 4, 6), (2, 3, 4, 6))
        done = mend(checkpoint, url)
        assert done.stands_at == 3
        assert not (checkpoint / "offsets/4").exists()

    def test_through_pyarrow(self, url, behind, tmp_path, monkeypatch):
        """A store that pyarrow.fs reads is written through it, too."""
        files = ArrowFiles("file:///", str(behind), "gs://bucket/ckpt", has_secrets=False)
        monkeypatch.setattr(recover, "CheckpointWriter", lambda _: CheckpointWriter(files))
        before = files_of(behind)
        monkeypatch.setattr(undo, "CheckpointWriter", lambda _: CheckpointWriter(files))
        assert mend("gs://bucket/ckpt", url).location == "gs://bucket/ckpt"
        assert (behind / "offsets/9").read_text() == entry(9)
        assert not list(behind.rglob("*.tmp"))
        undo_recovery("gs://bucket/ckpt", url, quiet_seconds=0)
        assert files_of(behind) == before

    def test_a_ledger_of_an_older_version_is_brought_up_to_date(self, url, behind, monkeypatch):
        """A job's first start after an upgrade may need its checkpoint mended."""
        newer = Migration(NEWEST + 1, 1, "0002_progress_indexes.sql")
        with psycopg.connect(url) as connection:
            connection.execute("DROP INDEX pgonce.progress_newest; DROP INDEX pgonce.progress_disagreements")
        monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, newer))
        monkeypatch.setattr(migrations, "_ensured", set())
        with pytest.raises(LedgerError, match="LEDGER_TOO_OLD"):
            mend(behind, url, dry_run=True)
        assert mend(behind, url).is_done

    def test_a_role_that_may_not(self, url, ahead, login):
        """Without the privilege to write the ledger no file is touched."""
        with psycopg.connect(url) as connection:
            connection.execute(f"GRANT USAGE ON SCHEMA pgonce TO {login.user}")
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA pgonce TO {login.user}")
        before = files_of(ahead)
        with pytest.raises(LedgerError, match="LEDGER_NOT_PERMITTED"):
            mend(ahead, login.url)
        assert files_of(ahead) == before
        assert mend(ahead, login.url, dry_run=True).is_needed

    def test_what_cannot_be_kept_is_not_replaced(self, url, ahead):
        """Where the copies cannot be written, nothing is taken away."""
        (ahead / "pgonce-kept").write_text("a file")
        before = files_of(ahead)
        with pytest.raises(CheckpointError, match="CHECKPOINT_NOT_WRITTEN"):
            mend(ahead, url)
        assert files_of(ahead) == before


class Cut(Exception):
    """The power goes."""


class TestCutShort:
    @pytest.mark.parametrize("done", range(13))
    def test_a_second_recovery_mends_it(self, done, url, ahead, monkeypatch):
        """Cut short after any single file, a second recovery ends where the first one would have."""
        put, count = CheckpointWriter.put, iter(range(100))

        def until_cut(writer, name, data):
            if next(count) == done:
                raise Cut
            put(writer, name, data)

        with monkeypatch.context() as cut:
            cut.setattr(CheckpointWriter, "put", until_cut)
            try:
                mend(ahead, url)
            except Cut:
                assert done < 12
        mend(ahead, url)
        found = examine(str(ahead), url)
        # With batch 6 planned after the recorded batch 5, as it was before, there is nothing more to take away.
        assert (found.finding, found.next_batch_id, found.begins) == (Finding.AGREE, 6, {"0": kafka(60)})
        assert found.remarks == ()

    @pytest.mark.parametrize("done", range(12))
    def test_undo_of_what_was_cut_short(self, done, url, ahead, monkeypatch):
        """What was changed before the cut is brought back, every byte."""
        before = files_of(ahead)
        put, count = CheckpointWriter.put, iter(range(100))

        def until_cut(writer, name, data):
            if next(count) == done:
                raise Cut
            put(writer, name, data)

        with monkeypatch.context() as cut:
            cut.setattr(CheckpointWriter, "put", until_cut)
            with pytest.raises(Cut):
                mend(ahead, url)
        undo_recovery(str(ahead), url, quiet_seconds=0)
        assert files_of(ahead) == before


class TestUndo:
    @pytest.mark.parametrize("which", ["behind", "ahead"])
    def test_every_byte_comes_back(self, which, url, request, observer):
        """Files, checksums and commits are as before, once; the ledger knows of it."""
        checkpoint = request.getfixturevalue(which)
        before = files_of(checkpoint)
        mend(checkpoint, url)
        assert files_of(checkpoint) != before
        assert undo_recovery(str(checkpoint), url, dry_run=True).is_needed
        assert files_of(checkpoint) != before
        undo_recovery(str(checkpoint), url, quiet_seconds=0)
        assert files_of(checkpoint) == before
        assert [kind for kind, *_ in noted(observer)] == ["recover", "undo"]
        with pytest.raises(RecoveryError, match="NOTHING_TO_UNDO"):
            undo_recovery(str(checkpoint), url, quiet_seconds=0)

    def test_again_and_again(self, url, ahead):
        """After an undo the same recovery can be made and undone again."""
        before = files_of(ahead)
        for _ in range(2):
            mend(ahead, url)
            undo_recovery(str(ahead), url, quiet_seconds=0)
        assert files_of(ahead) == before

    def test_a_manifest_that_cannot_be_read(self, url, ahead):
        """Nobody guesses what was replaced."""
        done = mend(ahead, url)
        (ahead / done.kept_in / "manifest.json").write_text("{}")
        with pytest.raises(CheckpointError, match="CHECKPOINT_MALFORMED"):
            undo_recovery(str(ahead), url, quiet_seconds=0)

    def test_too_late_for_the_checkpoint(self, url, ahead):
        """After the query has planned a batch, the old files stay where they lie."""
        mend(ahead, url)
        write_checkpoint(ahead, {6: entry(6, planned=1)})
        with pytest.raises(RecoveryError, match="UNDO_TOO_LATE"):
            undo_recovery(str(ahead), url, quiet_seconds=0)

    def test_too_late_for_the_ledger(self, url, behind):
        """After a batch was published, too, though asynchronous progress tracking has not written a file of it."""
        mend(behind, url)
        publish(url, 10, {"0": kafka(110)}, run_id="a new run", offset_log=entry(10))
        with pytest.raises(RecoveryError, match="UNDO_TOO_LATE.*a new run"):
            undo_recovery(str(behind), url, quiet_seconds=0)


class TestRunning:
    def refused(self, checkpoint, url, **patience):
        """The reason for which a recovery is refused; nothing was changed."""
        before = files_of(checkpoint)
        with pytest.raises(RecoveryError) as error:
            recover_checkpoint(str(checkpoint), url, **patience)
        assert error.value.code == "RECOVERY_RUNNING"
        assert files_of(checkpoint) == before
        return error.value.what

    def test_a_session_of_its_run(self, url, behind):
        """A commit that is under way is seen, and named."""
        with psycopg.connect(url, application_name=f"pgonce {RUN}"):
            assert "its run commits in session" in self.refused(behind, url, quiet_seconds=0, wait_seconds=0)
        assert mend(behind, url).is_done

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

    def test_a_newer_run_that_died_in_its_first_batch(self, url, behind, monkeypatch):
        """The ledger does not know that run yet; its session holds the row, and is ended."""
        monkeypatch.setattr(fence, "_LOCK_SECONDS", 3.0)
        with psycopg.connect(url, application_name="pgonce a run without a batch") as dead:
            dead.execute("SELECT FROM pgonce.writers FOR UPDATE")
            assert mend(behind, url).is_done
            with pytest.raises(psycopg.OperationalError):
                dead.execute("SELECT 1")

    def test_a_strangers_session_is_named_and_left_alone(self, url, behind, monkeypatch):
        """Somebody who looks at the row by hand is named."""
        monkeypatch.setattr(fence, "_LOCK_SECONDS", 3.0)
        with psycopg.connect(url, application_name="psql") as person:
            person.execute("SELECT FROM pgonce.writers FOR UPDATE")
            said = self.refused(behind, url, quiet_seconds=0)
            assert f"pid {person.info.backend_pid}, application 'psql'" in said
            person.execute("SELECT 1")

    def test_a_young_row(self, url, behind, observer):
        """A batch published or skipped a moment ago is a sign."""
        for path in behind.rglob("*"):
            os.utime(path, (1, 1))
        said = self.refused(behind, url, quiet_seconds=3600, wait_seconds=0)
        assert "the ledger heard of it" in said
        assert "offsets/" not in said

    def test_a_young_file(self, url, behind):
        """A file written a moment ago is a sign."""
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.writers SET updated_at = now() - interval '1 day'")
        said = self.refused(behind, url, quiet_seconds=3600, wait_seconds=0)
        assert "offsets/6 was written" in said
        assert "ledger" not in said

    def test_a_young_replay(self, url, behind):
        """A run that only skips publishes nothing, and yet it runs."""
        batch = publish(url, 10, {"0": kafka(110)}, offset_log=entry(10))
        replay(url, batch)
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.writers SET updated_at = now() - interval '1 day'")
        for path in behind.rglob("*"):
            os.utime(path, (1, 1))
        assert "the ledger heard of it" in self.refused(behind, url, quiet_seconds=3600, wait_seconds=0)

    def test_waiting(self, url, behind):
        """With some patience, a query that was stopped a moment ago is recovered."""
        began = time.monotonic()
        assert recover_checkpoint(str(behind), url, quiet_seconds=0.6, wait_seconds=30).is_done
        assert time.monotonic() - began < 20

    def test_a_batch_that_is_published_meanwhile(self, url, behind, monkeypatch):
        """What was planned from is compared with what is locked."""
        monkeypatch.setattr(
            fence,
            "refuse_running",
            lambda *_, **__: publish(url, 10, {"0": kafka(110)}, run_id="another", offset_log=entry(10)),
        )
        assert "public.orders has moved" in self.refused(behind, url, quiet_seconds=0)

    def test_a_commit_that_holds_its_row(self, url, behind, monkeypatch):
        """A row that stays locked is that of a commit."""
        monkeypatch.setattr(fence, "_LOCK_SECONDS", 0.1)
        with psycopg.connect(url) as holder:
            holder.execute("SELECT FROM pgonce.writers FOR UPDATE")
            assert "locked" in self.refused(behind, url, quiet_seconds=0)

    def test_a_file_that_comes_meanwhile(self, url, behind, monkeypatch):
        """A batch that was planned while the fence was set stops the recovery; the second one mends that too."""
        monkeypatch.setattr(
            fence, "refuse_running", lambda *_, **__: write_checkpoint(behind, {7: entry(7, planned=1)})
        )
        with pytest.raises(RecoveryError, match="RECOVERY_RUNNING.*the checkpoint has moved"):
            mend(behind, url)
        monkeypatch.undo()
        assert mend(behind, url).stands_at == 9

    def test_nothing_in_this_process(self):
        """Without a Spark in this process nothing is asked of one."""
        assert not still_running._is_active_here(QUERY)

    def test_two_at_once(self, url, ahead):
        """Two people with one idea: one recovers, the other is refused or finds nothing left to do."""
        outcomes = []

        def one():
            try:
                outcomes.append(mend(ahead, url).is_done)
            except RecoveryError as error:
                outcomes.append(error.code)

        threads = [threading.Thread(target=one) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert True in outcomes
        assert set(outcomes) <= {True, False, "RECOVERY_RUNNING"}
        assert sorted(int(path.name) for path in (ahead / "offsets").glob("[0-9]*")) == list(range(6))


class TestAway:
    """Postgres is away when a recovery begins."""

    def test_it_waits_and_goes_on(self, proxy, behind, caplog):
        """Before a start it waits as a commit does, says so once a try, and recovers when Postgres is back."""
        proxy.stop()
        threading.Timer(1.0, proxy.start).start()
        with caplog.at_level("WARNING", "pgonce"):
            assert mend(behind, proxy.url).is_done
        said = [record.getMessage() for record in caplog.records]
        assert len(said) >= 2
        assert all(line.startswith(f"recovery of {behind}: trying again in ") for line in said)
        assert all("CONNECT_FAILED" in line for line in said)

    def test_it_begins_again_where_the_line_breaks(self, proxy, behind):
        """The fence may have been set, or not: a second one does no harm."""
        proxy.cut_after_commit(touching="interventions")
        assert mend(behind, proxy.url).stands_at == 9
        assert proxy.hits["cut_after_commit"] == 1
        assert not mend(behind, proxy.url).is_needed

    def test_past_the_bound_it_fails_by_name(self, proxy, behind):
        """A Postgres that stays away is an error, and no file was touched."""
        before = files_of(behind)
        proxy.stop()
        began = time.monotonic()
        with pytest.raises(ConnectError, match="CONNECT_FAILED"):
            mend(behind, proxy.url, retry_timeout=1)
        # Pauses of 0.1, 0.2 and 0.4 s, each with a jitter of a half; a fourth one would end past the bound.
        assert time.monotonic() - began >= 0.3
        assert files_of(behind) == before

    def test_what_does_not_pass_fails_at_once(self, behind, url):
        """A database that is not there will not come while somebody waits."""
        with pytest.raises(ConnectError, match="CONNECT_REFUSED"):
            mend(behind, url.replace("/pgonce_test_", "/no_such_"))

    def test_the_bound_is_that_of_a_commit(self):
        """Nobody who waits for a commit need wait otherwise for a start."""
        patience = {
            inspect.signature(function).parameters["retry_timeout"].default
            for function in (recover_checkpoint, undo_recovery, recover_and_start, PostgresBatchWriter)
        }
        assert patience == {CommitSettings.retry_timeout} == {120.0}

    def test_a_command_waits_where_it_is_told_to(self, proxy, behind, monkeypatch):
        """A person at a shell hears at once that Postgres is away, unless --wait says for how long to try."""
        monkeypatch.setenv("PGONCE_URL", proxy.url)
        proxy.stop()
        began = time.monotonic()
        refused = CliRunner().invoke(app, ["recover", str(behind), "--apply"])
        assert "[CONNECT_FAILED]" in refused.stderr
        assert time.monotonic() - began < 60
        threading.Timer(1.0, proxy.start).start()
        done = CliRunner().invoke(app, ["recover", str(behind), "--apply", "--quiet-for", "0", "--wait", "600"])
        assert done.exit_code == ExitCode.OK


class TestDoctor:
    def test_agreement(self, url, tmp_path):
        """Where all is well it says so, and what comes next."""
        history(url, 5)
        found = examine(str(write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4, 5))), url)
        assert found.finding is Finding.AGREE
        assert (found.newest_offsets, found.newest_commit, found.next_batch_id, found.runs_again) == (5, 5, 6, False)
        assert found.begins == {"0": kafka(60)}
        assert [(sink.last_batch_id, sink.verdict) for sink in found.sinks] == [(5, Verdict.NEW)]

    def test_what_recover_mends(self, url, behind):
        """A sparse log that is behind: the failure of a synchronous start, the verdict, the command."""
        found = examine(str(behind), url)
        assert found.finding is Finding.RECOVERABLE
        assert found.sinks[0].verdict is Verdict.CHANGED
        assert any('"batch 5 doesn\'t exist"' in remark for remark in found.remarks)
        assert "pgonce recover" in found.advice

    def test_an_orphaned_checksum(self, url, tmp_path):
        """A checksum without its file is noticed, and taken away by recover."""
        history(url, 5)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4, 5))
        (checkpoint / "offsets/.6.crc").write_bytes(b"crc")
        found = examine(str(checkpoint), url)
        assert found.finding is Finding.RECOVERABLE
        assert any("offsets/.6.crc" in remark for remark in found.remarks)
        mend(checkpoint, url)
        assert not (checkpoint / "offsets/.6.crc").exists()
        assert examine(str(checkpoint), url).finding is Finding.AGREE

    @pytest.mark.parametrize(
        ("damage", "says"),
        [
            (lambda folder: (folder / "state").mkdir(), "keeps state"),
            (lambda folder: (folder / "metadata").unlink(), "no file named metadata"),
            (lambda folder: (folder / "metadata").write_text(f'{{"id":"{OTHER}"}}'), "does not know query"),
        ],
    )
    def test_what_a_person_must_decide(self, damage, says, ahead, url):
        """Stateful, without metadata, of an unknown query: each is said in words."""
        damage(ahead)
        found = examine(str(ahead), url)
        assert found.finding is Finding.NEEDS_PERSON
        assert says in " ".join([*found.remarks, found.advice])

    def test_a_continuous_query(self, url, tmp_path):
        """An empty metadata line is named, though the offsets agree."""
        continuous = entry(5).replace(entry(5).split("\n")[1], "")
        history(url, 5, {5: continuous})
        found = examine(str(write_checkpoint(tmp_path / "ckpt", {4: entry(4), 5: continuous}, (4, 5))), url)
        assert found.finding is Finding.NEEDS_PERSON
        assert any("continuous" in remark for remark in found.remarks)

    def test_sinks_that_are_gone(self, url, behind):
        """A retired sink is shown as such, and would be refused."""
        history(url, 3, sink_name="audit")
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.writers SET retired_at = now() WHERE sink_name = 'audit'")
        audit, orders = examine(str(behind), url).sinks
        assert (audit.sink_name, audit.verdict) == ("audit", Verdict.FENCED)
        assert "retired" in audit.says
        assert orders.verdict is Verdict.CHANGED


@pytest.fixture
def pgonce(url, monkeypatch):
    """Run `pgonce` on the test's database, and give its result."""
    monkeypatch.setenv("PGONCE_URL", url)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


class TestCommands:
    def test_doctor(self, pgonce, url, behind, tmp_path):
        """The exit code tells the finding; the JSON has stable keys."""
        shown = pgonce("doctor", behind)
        assert shown.exit_code == ExitCode.RECOVERABLE
        for text in (str(behind), QUERY, "public.orders", "CHANGED", "pgonce recover", "t 0:70"):
            assert text in shown.stdout
        answer = pgonce("doctor", behind, "--json")
        assert answer.exit_code == ExitCode.RECOVERABLE
        found = json.loads(answer.stdout)
        assert set(found) == {
            "location",
            "query_id",
            "finding",
            "newest_offsets",
            "newest_commit",
            "next_batch_id",
            "runs_again",
            "begins",
            "ends",
            "sinks",
            "remarks",
            "advice",
        }
        assert set(found["sinks"][0]) == {"sink_name", "last_batch_id", "end_offsets", "verdict"}
        mend(behind, url)
        assert pgonce("doctor", behind).exit_code == ExitCode.OK
        (behind / "state").mkdir()
        (behind / "commits/9").unlink()
        (behind / "offsets/9").write_text(entry(9, planned=1))
        assert pgonce("doctor", behind).exit_code == ExitCode.NEEDS_PERSON
        (behind / "offsets/9").write_text("v1")
        assert pgonce("doctor", behind).exit_code == ExitCode.UNREADABLE
        assert pgonce("doctor", tmp_path / "elsewhere").exit_code == ExitCode.UNREADABLE

    def test_recover(self, pgonce, behind):
        """It shows the files first, does it when told to, and takes it back."""
        before = files_of(behind)
        shown = pgonce("recover", behind)
        assert (shown.exit_code, files_of(behind)) == (ExitCode.OK, before)
        assert "write      offsets/9" in shown.stdout
        assert "--yes" in shown.stdout
        assert pgonce("recover", behind, "--yes").exit_code == ExitCode.RUNNING
        assert pgonce("recover", behind, "--yes", "--quiet-for", 0.5, "--wait", 20).exit_code == ExitCode.OK
        assert (behind / "offsets/9").exists()
        assert json.loads(pgonce("recover", behind, "--json").stdout)["is_needed"] is False
        assert pgonce("recover", behind, "--undo").exit_code == ExitCode.OK
        assert (behind / "offsets/9").exists()
        # The word of earlier versions still does it.
        assert pgonce("recover", behind, "--undo", "--apply", "--quiet-for", 0).exit_code == ExitCode.OK
        assert files_of(behind) == before
        assert "--apply" not in pgonce("recover", "--help").stdout

    def test_recover_refuses(self, pgonce, ahead, tmp_path):
        """Refusals have an exit code of their own, and so has a place without a checkpoint."""
        (ahead / "state").mkdir()
        refused = pgonce("recover", ahead, "--yes")
        assert refused.exit_code == ExitCode.NEEDS_PERSON
        assert "[RECOVERY_STATEFUL]" in refused.stderr
        nowhere = pgonce("recover", tmp_path / "nowhere")
        assert nowhere.exit_code == ExitCode.UNREADABLE
        assert "[CHECKPOINT_NOT_FOUND]" in nowhere.stderr


class TestAccept:
    @pytest.fixture
    def stuck(self, ahead):
        """A stateful query against a restored database: batch 9 is a gap, and nothing mends it."""
        (ahead / "state").mkdir()
        return ahead

    def accept(self, pgonce, stuck, *more, batch=9, reason="restored on purpose"):
        """Give the command."""
        return pgonce("accept", "orders", "--batch", batch, "--reason", reason, "--checkpoint", stuck, *more)

    def test_shown_first_then_done(self, pgonce, stuck, observer, url):
        """Without --yes it only tells; with it the ledger has the reason, and the doctor is content."""
        shown = self.accept(pgonce, stuck)
        assert (shown.exit_code, noted(observer)) == (ExitCode.OK, [])
        assert "GAP" in shown.stdout
        assert "--yes" in shown.stdout
        assert self.accept(pgonce, stuck, "--yes").exit_code == ExitCode.OK
        assert noted(observer) == [("accept", 9, "restored on purpose", None)]
        assert observer.execute("SELECT made_by = session_user FROM pgonce.interventions").fetchone() == (True,)
        found = examine(str(stuck), url)
        assert (found.finding, found.sinks[0].verdict) == (Finding.AGREE, Verdict.ACCEPTED)

    def test_refused(self, pgonce, stuck, observer, url):
        """Not twice, not without a reason, not another batch, not another query's checkpoint."""
        for code, given in [
            ("NO_REASON", {"reason": "  "}),
            ("ACCEPT_NOT_NEXT", {"batch": 8}),
            ("ACCEPT_NOT_NEXT", {"batch": 10}),
        ]:
            refused = self.accept(pgonce, stuck, "--yes", **given)
            assert refused.exit_code != ExitCode.OK
            assert f"[{code}]" in refused.stderr
        assert noted(observer) == []
        self.accept(pgonce, stuck, "--yes")
        assert "[ALREADY_ACCEPTED]" in self.accept(pgonce, stuck, "--yes").stderr
        (stuck / "metadata").write_text(f'{{"id":"{OTHER}"}}')
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM pgonce.interventions")
        assert "[OTHER_CHECKPOINT]" in self.accept(pgonce, stuck, "--yes").stderr

    def test_a_batch_that_would_be_no_error(self, pgonce, url, tmp_path):
        """What goes through anyhow needs nobody's word, and an unused one would let through what comes later."""
        history(url, 5)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4, 5))
        assert "[ACCEPT_NOT_NEEDED]" in self.accept(pgonce, checkpoint, "--yes", batch=6).stderr

    def test_without_the_checkpoint(self, pgonce, stuck, url, observer):
        """Where it cannot be read, only a batch past the next one is surely refused."""
        give = ("accept", "orders", "--reason", "because", "--yes", "--batch")
        assert "[ACCEPT_NOT_NEEDED]" in pgonce(*give, 6).stderr
        assert pgonce(*give, 7).exit_code == ExitCode.OK
        assert [batch_id for _, batch_id, *_ in noted(observer)] == [7]

    def test_reason_in_python(self, url, stuck):
        """The function wants a reason too."""
        with pytest.raises(ConfigurationError, match="NO_REASON"):
            accept_batch("orders", 9, url, reason="")


class TestRetire:
    def test_a_sink_that_is_gone(self, pgonce, url, tmp_path, observer):
        """Two sinks too far apart: one is retired, noted, refused from then on; the other is recovered."""
        history(url, 5)
        history(url, 2, sink_name="audit")
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(0, 1), (0, 1))
        with pytest.raises(RecoveryError, match="RECOVERY_APART"):
            mend(checkpoint, url)
        assert "[SINK_NEEDED]" in pgonce("retire", "orders").stderr
        command = ("retire", "orders", "--sink", "audit", "--reason", "moved to another job")
        assert pgonce(*command).exit_code == ExitCode.OK
        assert noted(observer) == []
        assert pgonce(*command, "--yes").exit_code == ExitCode.OK
        assert noted(observer) == [("retire", 2, "moved to another job", None)]
        assert "[WRITER_GONE]" in pgonce(*command, "--yes").stderr
        assert mend(checkpoint, url).stands_at == 5
        write_checkpoint(checkpoint, entries(2, 3))
        assert verdict(url, checkpoint, 3, "new", sink_name="audit") is Verdict.FENCED
        accept = pgonce("accept", "orders", "--sink", "audit", "--batch", 9, "--reason", "r", "--yes")
        assert "[WRITER_GONE]" in accept.stderr


class TestNewCheckpoint:
    def test_from_nothing(self, pgonce, url, tmp_path, observer):
        """Same id, recorded texts, the batch done; shown first; the old run is fenced; the next batch follows."""
        history(url, 5)
        path = tmp_path / "new"
        shown = pgonce("new-checkpoint", "orders", path)
        assert (shown.exit_code, path.exists()) == (ExitCode.OK, False)
        assert "offsets/4" in shown.stdout
        assert pgonce("new-checkpoint", "orders", path, "--yes").exit_code == ExitCode.RUNNING
        assert pgonce("new-checkpoint", "orders", path, "--yes", "--quiet-for", 0).exit_code == ExitCode.OK
        assert {name: data.decode() for name, data in files_of(path).items()} == {
            "metadata": f'{{"id":"{QUERY}"}}',
            "offsets/4": entry(4),
            "offsets/5": entry(5),
            "commits/5": 'v1\n{"nextBatchWatermarkMs":0}',
        }
        assert [kind for kind, *_ in noted(observer)] == ["new-checkpoint"]
        assert examine(str(path), url).finding is Finding.AGREE
        write_checkpoint(path, entries(6))
        assert verdict(url, path, 6, RUN) is Verdict.FENCED
        assert verdict(url, path, 6, "a new run") is Verdict.NEW

    def make(self, url, path, **options):
        """Write one at once."""
        return write_new_checkpoint(QUERY, str(path), url, quiet_seconds=0, **options)

    def test_batch_0(self, url, tmp_path):
        """After one batch there is none before it."""
        history(url, 0)
        self.make(url, tmp_path / "new")
        assert set(files_of(tmp_path / "new")) == {"metadata", "offsets/0", "commits/0"}

    def test_two_sinks(self, url, tmp_path):
        """One batch apart, the batch is left to be run again; further apart it is refused."""
        history(url, 5)
        history(url, 4, sink_name="audit")
        self.make(url, tmp_path / "new")
        assert not (tmp_path / "new/commits").exists()
        assert verdict(url, tmp_path / "new", 5, "new") is Verdict.REPLAY
        assert verdict(url, tmp_path / "new", 5, "new", sink_name="audit") is Verdict.NEW
        history(url, 2, sink_name="third")
        with pytest.raises(RecoveryError, match="RECOVERY_APART"):
            self.make(url, tmp_path / "newer")

    def test_rows_that_carry_positions(self, url, tmp_path, observer):
        """Where the last text was never recorded, an entry is made at the stored end and recorded: it is proof then."""
        history(url, 3)
        stored = {"0": kafka(47)}
        publish(url, 4, {"0": kafka(45)}, start={"0": kafka(40)}, span=Span({"0": kafka(40)}, stored))
        plan = self.make(url, tmp_path / "new")
        written = parse_offset_log((tmp_path / "new/offsets/4").read_text())
        assert written.offsets == {"0": kafka(47)}
        assert written.metadata == parse_offset_log(entry(3)).metadata
        assert observer.execute("SELECT offset_log FROM pgonce.batches WHERE batch_id = 4").fetchone() == (plan.entry,)
        assert examine(str(tmp_path / "new"), url).sinks[0].verdict is Verdict.NEW

    @pytest.mark.parametrize(
        ("code", "identity", "texts"),
        [
            ("RECOVERY_STATEFUL", {"stateful": True}, {}),
            ("RECOVERY_UNPROVEN", {"guarantee": "ids"}, {}),
            ("RECOVERY_UNPROVEN", {}, {n: entry(n, {"logOffset": n}) for n in range(3)}),
        ],
    )
    def test_refused(self, code, identity, texts, url, tmp_path):
        """State, numbers alone, and files cannot be made from the ledger; nothing is written."""
        history(url, 2, texts, **identity)
        with pytest.raises(RecoveryError, match=code):
            self.make(url, tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_a_source_without_an_offset(self, url, tmp_path):
        """A source that has not begun would begin anew, perhaps elsewhere."""
        history(url, 2, {2: entry(2) + "\n-"})
        with pytest.raises(RecoveryError, match="no offset yet"):
            self.make(url, tmp_path / "new")

    def test_state_that_is_unknown_is_refused(self, url, tmp_path):
        """Batches that did not say whether the query keeps state may be a stateful query's."""
        history(url, 2)
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.batches SET stateful = NULL")
        with pytest.raises(RecoveryError, match="RECOVERY_STATEFUL"):
            self.make(url, tmp_path / "new")

    def test_through_pyarrow(self, url, tmp_path, monkeypatch):
        """A store that pyarrow.fs reads can get a new checkpoint, and only once."""
        history(url, 2)
        files = ArrowFiles("file:///", str(tmp_path / "new"), "gs://bucket/new", has_secrets=False)
        monkeypatch.setattr(new_checkpoint, "CheckpointWriter", lambda _: CheckpointWriter(files))
        self.make(url, "gs://bucket/new")
        assert set(files_of(tmp_path / "new")) == {"metadata", "offsets/1", "offsets/2", "commits/2"}
        with pytest.raises(RecoveryError, match="PATH_NOT_EMPTY"):
            self.make(url, "gs://bucket/new")

    def test_never_over_anything(self, url, tmp_path):
        """A path where something lies is refused, whatever it is."""
        history(url, 2)
        (tmp_path / "new").mkdir()
        (tmp_path / "new/file").touch()
        with pytest.raises(RecoveryError, match="PATH_NOT_EMPTY"):
            self.make(url, tmp_path / "new")
        Path(tmp_path / "plain").write_text("a file")
        with pytest.raises(CheckpointError, match="CHECKPOINT_NOT_WRITTEN"):
            self.make(url, tmp_path / "plain")
