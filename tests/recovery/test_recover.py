"""
A stopped query's checkpoint is recovered from the ledger, wherever it is cut short; and refusals.

Covers: offsets_store.checkpoint.reader, offsets_store.checkpoint.writer,
pgonce.recovery.read_stopped_query.
"""

from __future__ import annotations

import json
from contextlib import contextmanager, nullcontext
from uuid import uuid4

import psycopg
import pytest
from support.ledger_history import RUN, publish
from support.made_up_migration import made_up, upgrade_pgonce
from support.recoveries import bring_back, history, noted, recover_at_once, verdict
from support.stopped_query import COMMIT, entries, entry, files_of, kafka, write_checkpoint

from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import CheckpointError, LedgerError, RecoveryError
from pgonce.offsets_store.offsets import Span
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.recovery.doctor import Finding, examine
from pgonce.recovery.recover import recover_checkpoint


class TestRecover:
    def test_a_checkpoint_that_is_behind_gets_the_recorded_files(self, url, behind):
        """The files are those that the ledger has recorded, without stale checksums; then there is nothing left."""
        done = recover_at_once(behind, url)
        assert (done.is_done, done.stands_at, done.written) == (True, 9, ("offsets/8", "offsets/9", "commits/9"))
        assert (behind / "offsets/8").read_text() == entry(8)
        assert (behind / "offsets/9").read_text() == entry(9)
        assert (behind / "commits/9").read_text() == COMMIT
        assert not recover_at_once(behind, url).is_needed

    def test_what_the_ledger_does_not_know_is_removed_and_kept_aside(self, url, ahead):
        before = files_of(ahead)
        done = recover_at_once(ahead, url)
        gone = {f"{folder}/{name}" for folder in ("offsets", "commits") for n in (6, 7, 8) for name in (n, f".{n}.crc")}
        assert set(done.removed) == gone
        assert files_of(ahead) == {name: data for name, data in before.items() if name not in gone}
        kept = ahead / done.kept_in
        assert {name: (kept / name).read_bytes() for name in done.kept} == {name: before[name] for name in gone}

    @pytest.mark.parametrize("which", ["behind", "ahead"])
    def test_what_it_replaced_can_be_brought_back_by_hand(self, which, url, request):
        """Every byte is as before, checksums too, and a second recovery does the same again."""
        checkpoint = request.getfixturevalue(which)
        before = files_of(checkpoint)
        for _ in range(2):
            recover_at_once(checkpoint, url)
            assert files_of(checkpoint) != before
            bring_back(checkpoint)
            assert files_of(checkpoint) == before

    def test_the_old_run_is_fenced_and_a_new_one_goes_on(self, url, ahead):
        """Whatever lives on after all is refused; a new run publishes the next batch."""
        recover_at_once(ahead, url)
        write_checkpoint(ahead, entries(6))
        assert verdict(url, ahead, 6, RUN) is Verdict.FENCED
        assert verdict(url, ahead, 6, "a new run") is Verdict.NEW

    def test_a_recovery_is_noted_and_owns_the_writer(self, url, behind, observer):
        """The ledger has a row with what was done, and the recovery as the owner."""
        done = recover_at_once(behind, url)
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
        shown = recover_at_once(ahead, url, dry_run=True)
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

    @pytest.mark.no_ledger
    def test_before_the_first_start(self, url, tmp_path):
        """A call before every start does no harm where there is no checkpoint, no ledger, or no finished batch."""
        assert not recover_checkpoint(str(tmp_path / "none"), url).is_needed
        assert recover_checkpoint(str(tmp_path / "none"), url, dry_run=True).query_id is None
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(0))
        assert not recover_checkpoint(str(checkpoint), url, dry_run=True).is_needed
        assert not recover_checkpoint(str(checkpoint), url).is_needed

    @pytest.mark.no_ledger
    def test_a_database_without_a_ledger_is_not_taken_for_an_empty_one(self, url, tmp_path):
        """A checkpoint with a past and a database without a ledger: the wrong database."""
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4, 5))
        with pytest.raises(LedgerError, match="NO_LEDGER"):
            recover_checkpoint(str(checkpoint), url, dry_run=True)

    @pytest.mark.parametrize("planned", [{}, {5: entry(5, kafka(87), planned=1)}], ids=["absent", "planned_again"])
    def test_the_last_batch_of_a_stateful_query(self, planned, url, tmp_path):
        """Its recorded entry is written, whole states go aside, the rest stays; all of it can be brought back."""
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
        done = recover_at_once(checkpoint, url)
        assert done.written == ("offsets/5",)
        assert set(done.removed) == {*whole, *(["offsets/.5.crc"] if planned else [])}
        assert (checkpoint / "offsets/5").read_text() == entry(5)
        assert [name for name in others if not (checkpoint / name).exists()] == []
        assert verdict(url, checkpoint, 5, RUN) is Verdict.FENCED
        assert verdict(url, checkpoint, 5, "new") is Verdict.REPLAY
        bring_back(checkpoint)
        assert files_of(checkpoint) == before

    def test_a_refusal_is_kept(self, url, tmp_path):
        """A recovery that a person must decide is a failure of the query; a look, and a query that runs, are not."""
        history(url, 5, stateful=True)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(3, 4), (3, 4))
        (checkpoint / "state/0/3/right-keyToNumValues").mkdir(parents=True)
        with pytest.raises(RecoveryError, match="QUERY_RUNNING"):
            recover_checkpoint(str(checkpoint), url, quiet_seconds=3600, wait_seconds=0)
        (checkpoint / "state/0/3/right-keyToNumValues/7.delta").touch()
        with pytest.raises(RecoveryError, match="RECOVERY_STATEFUL.* 5 "):
            recover_checkpoint(str(checkpoint), url, dry_run=True)
        assert OffsetsStore(url).failures() == []
        with pytest.raises(RecoveryError, match="RECOVERY_STATEFUL.* 5 ") as refused:
            recover_at_once(checkpoint, url)
        (failure,) = OffsetsStore(url).failures()
        assert (failure.seen_by, failure.code, failure.query_name) == ("recovery", refused.value.code, "orders")

    @pytest.mark.parametrize("cut", ["offsets/9", "commits/5", "offsets/2"])
    def test_an_entry_without_a_byte(self, cut, url, tmp_path):
        """A host lost power while it wrote one; it is taken aside, and what Spark needs is there again."""
        history(url, 9)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(*range(2, 10)), range(2, 10))
        (checkpoint / cut).write_text("")
        found = examine(str(checkpoint), url)
        assert found.finding is Finding.RECOVERABLE
        assert f"{cut} cannot be read" in found.remarks[0]
        assert recover_at_once(checkpoint, url).is_done
        assert examine(str(checkpoint), url).finding is Finding.AGREE

    def test_a_first_entry_half_written(self, url, tmp_path, observer):
        """What is left of it is taken aside, from a query that nobody knows yet; brought back, it is as before."""
        checkpoint = write_checkpoint(tmp_path / "ckpt", {})
        (checkpoint / "offsets").mkdir()
        (checkpoint / f"offsets/.0.{uuid4()}.tmp").write_text("v1")
        before = files_of(checkpoint)
        assert examine(str(checkpoint), url).finding is Finding.RECOVERABLE
        with pytest.raises(RecoveryError, match="QUERY_RUNNING"):
            recover_checkpoint(str(checkpoint), url, quiet_seconds=3600, wait_seconds=0)
        assert recover_at_once(checkpoint, url).is_done
        assert list(files_of(checkpoint)) == ["metadata"]
        assert observer.execute("SELECT count(*) FROM pgonce.writers").fetchone() == (0,)
        bring_back(checkpoint)
        assert files_of(checkpoint) == before

    def test_a_writer_with_positions_goes_back_to_a_proven_entry(self, url, tmp_path):
        """A writer that drops rows by position is moved back to an entry that is proven."""
        history(url, 3)
        stored = {"0": kafka(43)}
        publish(url, 4, None, start={"0": kafka(40)}, span=Span({"0": kafka(40)}, stored))
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(2, 3, 4, 6), (2, 3, 4, 6))
        done = recover_at_once(checkpoint, url)
        assert done.stands_at == 3
        assert not (checkpoint / "offsets/4").exists()

    def test_a_ledger_of_an_older_version_is_brought_up_to_date(self, url, behind, monkeypatch):
        """A job's first start after an upgrade may need its checkpoint repaired."""
        upgrade_pgonce(monkeypatch, made_up())
        with pytest.raises(LedgerError, match="LEDGER_TOO_OLD"):
            recover_at_once(behind, url, dry_run=True)
        assert recover_at_once(behind, url).is_done

    def test_a_role_that_may_not(self, url, ahead, login):
        """Without the privilege to write the ledger no file is touched."""
        with psycopg.connect(url) as connection:
            connection.execute(f"GRANT USAGE ON SCHEMA pgonce TO {login.user}")
            connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA pgonce TO {login.user}")
        before = files_of(ahead)
        with pytest.raises(LedgerError, match="LEDGER_NOT_PERMITTED"):
            recover_at_once(ahead, login.url)
        assert files_of(ahead) == before
        assert recover_at_once(ahead, login.url, dry_run=True).is_needed

    def test_what_cannot_be_kept_is_not_replaced(self, url, ahead):
        """Where the copies cannot be written, nothing is taken away."""
        (ahead / "pgonce-kept").write_text("a file")
        before = files_of(ahead)
        with pytest.raises(CheckpointError, match="CHECKPOINT_NOT_WRITTEN"):
            recover_at_once(ahead, url)
        assert files_of(ahead) == before


class Cut(Exception):
    """The power goes."""


@contextmanager
def cut_short(monkeypatch, done):
    """Raise :class:`Cut` instead of putting the file that follows after so many."""
    put, count = CheckpointWriter.put, iter(range(100))

    def until_cut(writer, name, data):
        if next(count) == done:
            raise Cut
        put(writer, name, data)

    with monkeypatch.context() as cut:
        cut.setattr(CheckpointWriter, "put", until_cut)
        yield


# The files that the recovery of `ahead` puts aside, one by one, with their manifest.
ALL_FILES = 12


class TestCutShort:
    """``ahead`` again and again, each time under another name, cut short after one more file."""

    @pytest.fixture
    def places(self, url, tmp_path):
        """A checkpoint for each file after which a recovery may be cut short."""
        history(url, 5)
        return [write_checkpoint(tmp_path / str(done), entries(*range(9)), range(9)) for done in range(ALL_FILES + 1)]

    def test_a_second_recovery_repairs_it(self, url, places, monkeypatch):
        """Cut short after any single file, a second recovery ends where the first one would have."""
        for done, place in enumerate(places):
            with cut_short(monkeypatch, done), nullcontext() if done == ALL_FILES else pytest.raises(Cut):
                recover_at_once(place, url)
            recover_at_once(place, url)
            found = examine(str(place), url)
            # With batch 6 planned after the recorded batch 5, as it was before, there is nothing more to take away.
            assert (found.finding, found.next_batch_id, found.begins) == (Finding.AGREE, 6, {"0": kafka(60)})
            assert found.remarks == ()

    def test_what_was_changed_before_the_cut_can_be_brought_back(self, url, places, monkeypatch):
        """Every byte is as before."""
        for done, place in enumerate(places[:ALL_FILES]):
            before = files_of(place)
            with cut_short(monkeypatch, done), pytest.raises(Cut):
                recover_at_once(place, url)
            bring_back(place)
            assert files_of(place) == before
