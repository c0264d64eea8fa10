"""
Doctor and recover over a real object store, on good days and on bad ones.

Covers: pgonce.recovery.doctor.
"""

from __future__ import annotations

import pytest
from support.recoveries import recover_at_once
from support.stopped_query import COMMIT, entry, files_of

from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import RecoveryError
from pgonce.recovery.doctor import Finding, examine


@pytest.fixture
def bring(folder_in_store):
    """Copy a checkpoint from the disk into the store, without the checksums of a disk; give its location there."""

    def copied(checkpoint) -> str:
        writer = CheckpointWriter(folder_in_store)
        for name, data in files_of(checkpoint).items():
            if not name.endswith(".crc"):
                writer.write(name, data)
        return folder_in_store

    return copied


def in_store(location: str, name: str) -> str | None:
    """A file's text; None if it is not there."""
    data = CheckpointWriter(location).files.read(name)
    return None if data is None else data.decode()


def make_weak(weak_store, day: str) -> None:
    """Let the store have a bad day."""
    if day == "slow":
        weak_store.delay_seconds = 0.1
    elif day == "failing":
        weak_store.fails_each = 4
    elif day == "late":
        weak_store.lists_after_seconds = 120.0


@pytest.mark.parametrize("day", ["good", "slow", "failing", "late"])
def test_a_checkpoint_comes_forward(url, behind, bring, weak_store, day):
    """A checkpoint behind the ledger is brought to where the ledger stands."""
    location = bring(behind)
    make_weak(weak_store, day)
    assert examine(location, url).finding is Finding.RECOVERABLE
    done = recover_at_once(location, url)
    assert (done.is_done, done.stands_at) == (True, 9)
    assert in_store(location, "offsets/9") == entry(9)
    assert in_store(location, "commits/9") == COMMIT
    again = recover_at_once(location, url)
    # What no listing has, and does not follow on what one has, is written again.
    assert again.is_done or not again.is_needed
    assert again.stands_at == 9
    assert day == "late" or not again.is_needed


@pytest.mark.parametrize("day", ["good", "failing", "late"])
def test_what_the_ledger_does_not_know_is_kept_aside(url, ahead, bring, weak_store, day):
    """What the ledger does not know is gone from the store, and lies kept aside there."""
    location = bring(ahead)
    make_weak(weak_store, day)
    done = recover_at_once(location, url)
    assert done.is_done
    assert [in_store(location, f"offsets/{n}") for n in (6, 7, 8)] == [None] * 3
    assert in_store(location, "offsets/5") == entry(5)
    assert in_store(location, f"{done.kept_in}/offsets/6") == files_of(ahead)["offsets/6"].decode()


def test_back_while_removed_files_are_listed(url, ahead, bring, weak_store):
    """They count as removed: the query goes on after the newest entry that can be read, and nothing is left to do."""
    location = bring(ahead)
    weak_store.settle()
    weak_store.lists_after_seconds = 120.0
    assert recover_at_once(location, url).is_done
    assert Checkpoint(location).newest_offset_entry().batch_id == 5
    assert examine(location, url).finding is Finding.AGREE
    assert weak_store.shown_too_long > 0


@pytest.mark.parametrize("day", ["good", "late"])
def test_a_query_that_keeps_state(url, behind, bring, weak_store, day):
    """It is not moved, though no listing has its state yet."""
    location = bring(behind)
    CheckpointWriter(location).write("state/0/_metadata/metadata", b"v1\n{}")
    make_weak(weak_store, day)
    with pytest.raises(RecoveryError, match="RECOVERY_STATEFUL"):
        recover_at_once(location, url)
