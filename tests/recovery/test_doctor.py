"""
What doctor finds between a checkpoint and the ledger, before and after a recovery.

Covers: pgonce.recovery.doctor.
"""

from __future__ import annotations

import pytest
from support.ledger_history import OTHER
from support.recoveries import history, recover_at_once
from support.stopped_query import entries, kafka, write_checkpoint

from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.recovery.doctor import Finding, examine


class TestDoctor:
    def test_a_checkpoint_that_agrees_is_told_with_what_comes_next(self, url, tmp_path):
        """Where all is well it says so, and what comes next."""
        history(url, 5)
        found = examine(str(write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4, 5))), url)
        assert found.finding is Finding.AGREE
        assert (found.newest_offsets, found.newest_commit, found.next_batch_id, found.runs_again) == (5, 5, 6, False)
        assert found.begins == {"0": kafka(60)}
        assert [(sink.last_batch_id, sink.verdict) for sink in found.sinks] == [(5, Verdict.NEW)]

    def test_a_checkpoint_of_batch_0_alone_misses_nothing(self, url, tmp_path):
        """Number 0 is a number: nothing was removed."""
        history(url, 0)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(0), (0,))
        assert examine(str(checkpoint), url).remarks == ()

    def test_a_checksum_without_its_file_is_noticed_and_removed(self, url, tmp_path):
        """A checksum without its file is noticed, and taken away by recover."""
        history(url, 5)
        checkpoint = write_checkpoint(tmp_path / "ckpt", entries(4, 5), (4, 5))
        (checkpoint / "offsets/.6.crc").write_bytes(b"crc")
        found = examine(str(checkpoint), url)
        assert found.finding is Finding.RECOVERABLE
        assert any("offsets/.6.crc" in remark for remark in found.remarks)
        recover_at_once(checkpoint, url)
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
        """Stateful, without metadata, of an unknown query: each has a text."""
        damage(ahead)
        found = examine(str(ahead), url)
        assert found.finding is Finding.NEEDS_PERSON
        assert says in " ".join([*found.remarks, found.advice])

    def test_sinks_that_are_gone(self, url, admin, behind):
        """A retired sink is shown as such, and would be refused."""
        history(url, 3, sink_name="audit")
        admin.execute("UPDATE pgonce.writers SET retired_at = now() WHERE sink_name = 'audit'")
        audit, orders = examine(str(behind), url).sinks
        assert (audit.sink_name, audit.verdict) == ("audit", Verdict.FENCED)
        assert "retired" in audit.says
        assert orders.verdict is Verdict.CHANGED
