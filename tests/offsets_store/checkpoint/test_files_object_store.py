"""
A checkpoint in a real object store: read and written, while the store is slow, fails now and then, or lists late.

Covers: offsets_store.checkpoint.writer.
"""

from __future__ import annotations

import os
import pickle
import time
import traceback

import pytest
from support.ledger_history import QUERY
from support.stopped_query import COMMIT, entry

from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.errors import CheckpointError

KAFKA_START = b'\x00v1\n{"t":{"0":3,"1":0}}'
METADATA = f'{{"id":"{QUERY}"}}'


@pytest.fixture
def checkpoint(folder_in_store):
    """A checkpoint with three entries, the last of which is not committed."""
    writer = CheckpointWriter(folder_in_store)
    writer.write("metadata", METADATA.encode())
    for number in range(3):
        writer.write(f"offsets/{number}", entry(number).encode())
    for number in range(2):
        writer.write(f"commits/{number}", COMMIT.encode())
    return Checkpoint(folder_in_store)


def assert_is_read(checkpoint):
    """Everything that a batch asks a checkpoint for is there."""
    assert checkpoint.query_id() == QUERY
    assert checkpoint.newest_offset_entry().batch_id == 2
    assert checkpoint.offset_log(1).text == entry(1)
    assert (checkpoint.is_committed(1), checkpoint.is_committed(2)) == (True, False)
    assert checkpoint.batch_ids() == ([0, 1, 2], [0, 1])
    assert not checkpoint.is_stateful()


def test_a_store_gives_what_was_written_and_not_what_was_removed(checkpoint, folder_in_store):
    """What was written is read, nothing half-written is left, and what was removed is gone."""
    assert_is_read(checkpoint)
    writer = CheckpointWriter(folder_in_store)
    assert sorted(writer.files.names("offsets")) == ["0", "1", "2"]
    assert writer.written_at("offsets/2") is not None
    writer.remove("offsets/2")
    assert checkpoint.batch_ids() == ([0, 1], [0, 1])


def test_a_slow_store_is_waited_for(checkpoint, weak_store):
    """A store that takes four seconds for each answer is waited for."""
    weak_store.delay_seconds = 4.0
    begun = time.monotonic()
    assert checkpoint.query_id() == QUERY
    assert time.monotonic() - begun > 4.0


def test_a_store_that_fails_now_and_then(checkpoint, weak_store):
    """Requests that fail, with an answer or without one, are sent again."""
    weak_store.fails_each = 3
    for _ in range(3):
        assert_is_read(checkpoint)
    assert weak_store.failed > 5


def test_a_store_that_is_away(checkpoint, weak_store):
    """If every request fails, that is an error with the path in it, and not a checkpoint without entries."""
    weak_store.fails_each = 1
    with pytest.raises(CheckpointError, match="CHECKPOINT_UNREADABLE"):
        checkpoint.newest_offset_entry()
    with pytest.raises(CheckpointError, match="CHECKPOINT_UNREADABLE"):
        checkpoint.is_committed(1)


def test_a_store_that_lists_late(checkpoint, folder_in_store, weak_store):
    """Entries that no listing has yet are found by their numbers."""
    weak_store.lists_after_seconds = 60.0
    assert [name for name in CheckpointWriter(folder_in_store).files.names("offsets") if name.isdecimal()] == []
    assert_is_read(checkpoint)
    CheckpointWriter(folder_in_store).write("offsets/3", entry(3).encode())
    assert checkpoint.newest_offset_entry().batch_id == 3
    assert weak_store.hidden > 0


@pytest.mark.parametrize("first", ["metadata", "v2/0"])
def test_a_folder_that_is_listed_late(checkpoint, folder_in_store, weak_store, first):
    """A stateful query is not taken for a stateless one, nor the start of its sources overlooked."""
    writer = CheckpointWriter(folder_in_store)
    writer.write(f"state/0/_metadata/{first}", b"v1\n{}")
    writer.write("sources/0/0", KAFKA_START)
    weak_store.lists_after_seconds = 60.0
    assert writer.files.names("state") == writer.files.names("sources") == writer.files.names("") == []
    assert checkpoint.is_stateful()
    assert checkpoint.initial_offsets(checkpoint.offset_log(0)) == {"0": {"t": {"0": 3, "1": 0}}}


def test_an_entry_that_is_listed_after_it_was_removed(checkpoint, folder_in_store, weak_store):
    """The newest entry is the newest one that can be read."""
    weak_store.settle()
    weak_store.lists_after_seconds = 60.0
    writer = CheckpointWriter(folder_in_store)
    writer.remove("offsets/2")
    assert "2" in writer.files.names("offsets")
    assert checkpoint.newest_offset_entry().batch_id == 1
    assert weak_store.shown_too_long > 0


def test_a_file_that_cannot_be_moved_into_its_place(checkpoint, folder_in_store, weak_store):
    """The unfinished file is removed, the old file stays, and the error is that of the move."""
    weak_store.refuses_copies = True
    writer = CheckpointWriter(folder_in_store)
    with pytest.raises(CheckpointError, match="CHECKPOINT_NOT_WRITTEN") as refused:
        writer.write("offsets/2", entry(3).encode())
    assert "copy" in str(refused.value).lower()
    assert sorted(writer.files.names("offsets")) == ["0", "1", "2"]
    assert checkpoint.offset_log(2).text == entry(2)


def test_a_login_in_the_uri_is_used_and_never_shown(checkpoint, folder_in_store, object_store, monkeypatch):
    """Keys in the URI reach the store, in another process too; location, error and traceback are without them."""
    secret = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    for given in (secret, "zq7secret"):
        location = folder_in_store.replace("://", f"://{object_store.access_key}:{given}@")
        found = pickle.loads(pickle.dumps(Checkpoint(location)))
        assert found.location == folder_in_store
        if given == secret:
            assert_is_read(found)
        else:
            with pytest.raises(CheckpointError, match="CHECKPOINT_UNREADABLE") as refused:
                found.query_id()
            shown = "".join(traceback.format_exception(refused.value))
            assert object_store.access_key not in shown
            assert given not in shown


def test_the_query_of_the_uri_is_pyarrows(checkpoint, folder_in_store, weak_store, monkeypatch):
    """Options behind a question mark reach pyarrow, so that another endpoint can be named; they are not shown."""
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    found = Checkpoint(f"{folder_in_store}?scheme=http&endpoint_override=127.0.0.1:{weak_store.port}")
    assert found.location == folder_in_store
    assert_is_read(pickle.loads(pickle.dumps(found)))
