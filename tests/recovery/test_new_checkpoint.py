"""A checkpoint is written from the ledger, for a query whose own is lost."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from support.ledger_history import QUERY, RUN, publish
from support.recoveries import history, noted, verdict
from support.stopped_query import entries, entry, files_of, kafka, write_checkpoint

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.checkpoint.files import ArrowFiles
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import CheckpointError, RecoveryError
from pgonce.offsets_store.offsets import Span
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.recovery import new_checkpoint
from pgonce.recovery.doctor import Finding, examine
from pgonce.recovery.new_checkpoint import write_new_checkpoint


class TestNewCheckpoint:
    def test_a_lost_checkpoint_is_written_and_the_old_run_is_fenced(self, pgonce, url, tmp_path, observer):
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

    def test_two_sinks_may_be_one_batch_apart_and_no_further(self, url, tmp_path):
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

    def test_an_entry_that_was_not_recorded_is_not_made_up(self, url, tmp_path):
        """With asynchronous progress, rows that carry positions may be stored without it."""
        history(url, 3)
        stored = {"0": kafka(47)}
        publish(url, 4, {"0": kafka(45)}, start={"0": kafka(40)}, span=Span({"0": kafka(40)}, stored))
        with pytest.raises(RecoveryError, match="RECOVERY_UNPROVEN.*offsets/4.*`pgonce offsets QUERY`"):
            self.make(url, tmp_path / "new")
        assert not (tmp_path / "new").exists()

    @pytest.mark.parametrize(
        ("code", "identity", "texts"),
        [
            ("RECOVERY_STATEFUL", {"stateful": True}, {}),
            ("RECOVERY_UNPROVEN", {"guarantee": "ids"}, {}),
            ("RECOVERY_UNPROVEN", {}, {n: entry(n, {"logOffset": n}) for n in range(3)}),
        ],
    )
    def test_what_the_ledger_alone_cannot_prove_is_refused(self, code, identity, texts, url, tmp_path):
        """State, numbers alone, and files cannot be made from the ledger; nothing is written."""
        history(url, 2, texts, **identity)
        with pytest.raises(RecoveryError, match=code):
            self.make(url, tmp_path / "new")
        assert not (tmp_path / "new").exists()

    def test_a_source_without_an_offset(self, url, tmp_path):
        """A source that has not begun would begin again, perhaps elsewhere."""
        history(url, 2, {2: entry(2) + "\n-"})
        with pytest.raises(RecoveryError, match="RECOVERY_UNPROVEN.* no offset"):
            self.make(url, tmp_path / "new")

    def test_state_that_is_unknown_is_refused(self, url, tmp_path):
        """Batches that did not say whether the query keeps state may be a stateful query's."""
        history(url, 2)
        with psycopg.connect(url) as connection:
            connection.execute("UPDATE pgonce.batches SET stateful = NULL")
        with pytest.raises(RecoveryError, match="RECOVERY_STATEFUL"):
            self.make(url, tmp_path / "new")

    def test_a_store_that_pyarrow_reads_gets_a_checkpoint_once(self, url, tmp_path, monkeypatch):
        """A store that pyarrow.fs reads can get a new checkpoint, and only once."""
        history(url, 2)
        files = ArrowFiles("file:///", str(tmp_path / "new"), "gs://bucket/new", has_secrets=False)
        monkeypatch.setattr(new_checkpoint, "CheckpointWriter", lambda _: CheckpointWriter(files))
        self.make(url, "gs://bucket/new")
        assert set(files_of(tmp_path / "new")) == {"metadata", "offsets/1", "offsets/2", "commits/2"}
        with pytest.raises(RecoveryError, match="PATH_NOT_EMPTY"):
            self.make(url, "gs://bucket/new")

    def test_one_that_was_cut_short_is_written_elsewhere(self, url, tmp_path, monkeypatch):
        """What was written of it stays in the way, and the query is fenced once more."""
        history(url, 2)
        put = CheckpointWriter.put

        def until_cut(writer, name, data):
            if name != "metadata":
                raise InterruptedError
            put(writer, name, data)

        with monkeypatch.context() as cut:
            cut.setattr(CheckpointWriter, "put", until_cut)
            with pytest.raises(InterruptedError):
                self.make(url, tmp_path / "new")
        with pytest.raises(RecoveryError, match="PATH_NOT_EMPTY"):
            self.make(url, tmp_path / "new")
        self.make(url, tmp_path / "newer")
        assert set(files_of(tmp_path / "newer")) == {"metadata", "offsets/1", "offsets/2", "commits/2"}

    def test_a_path_where_something_lies_is_refused(self, url, tmp_path):
        history(url, 2)
        (tmp_path / "new").mkdir()
        (tmp_path / "new/file").touch()
        with pytest.raises(RecoveryError, match="PATH_NOT_EMPTY"):
            self.make(url, tmp_path / "new")
        Path(tmp_path / "plain").write_text("a file")
        with pytest.raises(CheckpointError, match="CHECKPOINT_NOT_WRITTEN"):
            self.make(url, tmp_path / "plain")
