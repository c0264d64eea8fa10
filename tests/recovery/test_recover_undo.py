"""
What a recovery has replaced comes back, byte by byte, unless it is too late.

Covers: pgonce.recovery.backup.
"""

from __future__ import annotations

import hashlib
import json

import pytest
from support.ledger_history import publish
from support.recoveries import noted, recover_at_once
from support.stopped_query import entry, files_of, kafka, write_checkpoint

from pgonce.offsets_store.errors import CheckpointError, RecoveryError
from pgonce.recovery.recover import undo_recovery


class TestUndo:
    @pytest.mark.parametrize("which", ["behind", "ahead"])
    def test_every_byte_comes_back(self, which, url, request, observer):
        """Files, checksums and commits are as before, once; the ledger knows of it."""
        checkpoint = request.getfixturevalue(which)
        before = files_of(checkpoint)
        recover_at_once(checkpoint, url)
        assert files_of(checkpoint) != before
        assert undo_recovery(str(checkpoint), url, dry_run=True).is_needed
        assert files_of(checkpoint) != before
        undo_recovery(str(checkpoint), url, quiet_seconds=0)
        assert files_of(checkpoint) == before
        assert [kind for kind, *_ in noted(observer)] == ["recover", "undo"]
        with pytest.raises(RecoveryError, match="NOTHING_TO_DO"):
            undo_recovery(str(checkpoint), url, quiet_seconds=0)
        recover_at_once(checkpoint, url)
        undo_recovery(str(checkpoint), url, quiet_seconds=0)
        assert files_of(checkpoint) == before

    def test_a_manifest_that_cannot_be_read(self, url, ahead):
        """Nobody guesses what was replaced."""
        done = recover_at_once(ahead, url)
        (ahead / done.kept_in / "manifest.json").write_text("{}")
        with pytest.raises(CheckpointError, match="CHECKPOINT_MALFORMED"):
            undo_recovery(str(ahead), url, quiet_seconds=0)

    def test_a_manifest_that_names_other_files(self, url, ahead):
        """A user who may write to the checkpoint could send another user's undo anywhere."""
        done = recover_at_once(ahead, url)
        manifest = ahead / done.kept_in / "manifest.json"
        known = json.loads(manifest.read_text())
        beside = ahead.parent / "beside"
        beside.write_text("another's")
        for name in ("../beside", "offsets/../../beside", "/beside", "offsets//5", "metadata", 5, None):
            files = [{"name": name, "before": None, "after": hashlib.sha256(b"another's").hexdigest()}]
            manifest.write_text(json.dumps({**known, "files": files}))
            with pytest.raises(CheckpointError, match="CHECKPOINT_MALFORMED"):
                undo_recovery(str(ahead), url, quiet_seconds=0)
            assert beside.read_text() == "another's"

    def test_too_late_for_the_checkpoint(self, url, ahead):
        """After the query has planned a batch, the old files stay where they lie."""
        recover_at_once(ahead, url)
        write_checkpoint(ahead, {6: entry(6, planned=1)})
        with pytest.raises(RecoveryError, match="NOTHING_TO_DO"):
            undo_recovery(str(ahead), url, quiet_seconds=0)

    def test_too_late_for_the_ledger(self, url, behind):
        """After a batch was published, too, though asynchronous progress tracking has not written a file of it."""
        recover_at_once(behind, url)
        publish(url, 10, {"0": kafka(110)}, run_id="a new run", offset_log=entry(10))
        with pytest.raises(RecoveryError, match="NOTHING_TO_DO.*a new run"):
            undo_recovery(str(behind), url, quiet_seconds=0)
