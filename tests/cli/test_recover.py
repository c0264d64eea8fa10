"""``pgonce doctor`` and ``pgonce recover``: their answers and exit codes."""

from __future__ import annotations

import json

import pyarrow.fs
import pytest
from support.ledger_history import QUERY
from support.recoveries import recover_at_once
from support.stopped_query import entry, files_of, write_checkpoint

from pgonce.cli.terms import ExitCode
from pgonce.offsets_store.checkpoint.files import ArrowFiles


class TestCommands:
    def test_doctor_tells_each_finding_by_its_exit_code(self, pgonce, url, behind, tmp_path):
        """The exit code tells the finding; the JSON has stable keys."""
        shown = pgonce("doctor", behind)
        assert shown.exit_code == ExitCode.RECOVERABLE
        for text in (str(behind), QUERY, "public.orders", "CHANGED", "pgonce recover", "t 0:70"):
            assert text in shown.stdout
        answer = pgonce("doctor", behind, "--json")
        assert answer.exit_code == ExitCode.RECOVERABLE
        found = json.loads(answer.stdout)
        assert set(found) == {
            "location", "query_id", "finding", "newest_offsets", "newest_commit", "next_batch_id", "runs_again",
            "begins", "ends", "sinks", "remarks", "advice",
        }  # fmt: skip
        assert set(found["sinks"][0]) == {"sink_name", "last_batch_id", "end_offsets", "verdict"}
        recover_at_once(behind, url)
        assert pgonce("doctor", behind).exit_code == ExitCode.OK
        (behind / "state").mkdir()
        (behind / "commits/9").unlink()
        (behind / "offsets/9").write_text(entry(9, planned=1))
        assert pgonce("doctor", behind).exit_code == ExitCode.NEEDS_PERSON
        (behind / "offsets/9").write_text("v99\n{}\n1")
        assert pgonce("doctor", behind).exit_code == ExitCode.UNREADABLE
        assert pgonce("doctor", tmp_path / "elsewhere").exit_code == ExitCode.UNREADABLE

    def test_recover_shows_the_files_and_writes_them_when_told_to(self, pgonce, behind):
        """It shows the files first, does it when told to, and says where it has kept what it replaced."""
        before = files_of(behind)
        shown = pgonce("recover", behind)
        assert (shown.exit_code, files_of(behind)) == (ExitCode.OK, before)
        assert "write      offsets/9" in shown.stdout
        assert "--yes" in shown.stdout
        assert pgonce("recover", behind, "--yes").exit_code == ExitCode.RUNNING
        done = pgonce("recover", behind, "--yes", "--quiet-for", 0.5, "--wait", 20)
        assert (done.exit_code, "kept in pgonce-kept/" in done.stdout) == (ExitCode.OK, True)
        assert (behind / "offsets/9").exists()
        assert json.loads(pgonce("recover", behind, "--json").stdout)["is_needed"] is False

    def test_a_path_with_a_key_in_it(self, pgonce, behind, tmp_path, monkeypatch):
        """The answer shows where the checkpoint is, and not how one logs in there. (A folder stands for the store.)"""
        folder = pyarrow.fs.LocalFileSystem(), str(tmp_path / "store")
        monkeypatch.setattr(ArrowFiles, "_store_and_base", property(lambda files: folder))
        write_checkpoint(tmp_path / "store", {})
        shown = pgonce("recover", "s3a://key:zq7s3cret@bucket/checkpoint")
        assert "s3a://bucket/checkpoint" in shown.stdout
        assert "zq7s3cret" not in shown.stdout + shown.stderr

    @pytest.mark.parametrize(("stands", "may_double"), [("ahead", True), ("behind", False)])
    def test_going_back_may_double(self, stands, may_double, pgonce, request):
        """Both commands say so before anything is changed, but not of a checkpoint that goes forward."""
        checkpoint = request.getfixturevalue(stands)
        for command in ("doctor", "recover"):
            assert ("would be written twice" in pgonce(command, checkpoint).stdout.replace("\n", " ")) == may_double

    def test_a_refused_recovery_has_an_exit_code_of_its_own(self, pgonce, ahead, tmp_path):
        """Refusals have an exit code of their own, and so has a place without a checkpoint."""
        (ahead / "state").mkdir()
        refused = pgonce("recover", ahead, "--yes")
        assert refused.exit_code == ExitCode.NEEDS_PERSON
        assert "[RECOVERY_STATEFUL]" in refused.stderr
        nowhere = pgonce("recover", tmp_path / "nowhere")
        assert nowhere.exit_code == ExitCode.UNREADABLE
        assert "[CHECKPOINT_NOT_FOUND]" in nowhere.stderr
