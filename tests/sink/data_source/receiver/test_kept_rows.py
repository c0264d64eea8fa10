"""Rows that are kept in a file are those that were kept, whatever happened while it was written."""

from __future__ import annotations

import os
import resource

import pytest

from pgonce.sink.data_source.receiver import kept_rows
from pgonce.sink.data_source.receiver.kept_rows import KeptRows, PromisedRows


@pytest.fixture
def path(tmp_path):
    """Where the file will be."""
    return tmp_path / "kept"


def keep(path, *bodies):
    """A file with these bodies, each with its partition, attempt and number of rows."""
    kept = KeptRows(path)
    for partition_id, attempt_id, rows, body in bodies:
        kept.add(partition_id, attempt_id, rows, body)
    return kept


def promised(path, received):
    """What a commit reads."""
    return list(PromisedRows(path, received).bodies())


def test_the_first_rows_of_the_promised_attempts_are_read(path):
    """Of each partition those of one attempt, as many as are promised, in whole bodies."""
    keep(path, (0, 1, 2, b"a"), (1, 3, 1, b"b"), (0, 2, 2, b"c"), (0, 1, 3, b"d" * 100_000), (0, 1, 1, b"e"))
    assert promised(path, {0: (1, 2)}) == [b"a"]
    assert promised(path, {0: (1, 5), 1: (3, 1)}) == [b"a", b"b", b"d" * 100_000]
    assert promised(path, {0: (2, 2)}) == [b"c"]
    assert promised(path, {0: (1, 6), 1: (3, 0)}) == [b"a", b"d" * 100_000, b"e"]


@pytest.mark.parametrize("received", [{0: (1, 1)}, {0: (1, 4)}, {0: (1, 7)}, {0: (9, 1)}, {5: (1, 1)}])
def test_rows_that_are_not_there_are_missed(path, received):
    """Neither a part of a body stands for rows, nor a later one that would fit the number."""
    keep(path, (0, 1, 2, b"a"), (0, 1, 3, b"b"), (0, 1, 1, b"c"))
    with pytest.raises(EOFError, match="other rows"):
        promised(path, received)


def test_a_file_that_ends_too_early_has_its_whole_bodies(path):
    """Its receiver may have been killed at any byte."""
    keep(path, (0, 1, 2, b"first"))
    first = path.stat().st_size
    path.unlink()
    keep(path, (0, 1, 2, b"first"), (0, 1, 3, b"second"))
    for size in range(path.stat().st_size - 1, first - 1, -1):
        os.truncate(path, size)
        assert promised(path, {0: (1, 2)}) == [b"first"]
        with pytest.raises(EOFError):
            promised(path, {0: (1, 5)})


def test_a_body_for_which_there_is_no_room_leaves_the_file_as_it_was(path):
    """Where a write fails in the middle, what it has written is cut off, and smaller bodies still find room."""
    kept = keep(path, (0, 1, 1, b"a"))
    size, before = path.stat().st_size, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 500, before[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            kept.add(0, 1, 1, b"b" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == size == kept.size
    kept.add(0, 1, 1, b"c")
    assert promised(path, {0: (1, 2)}) == [b"a", b"c"]


def test_some_of_the_disk_is_left_to_others(path, monkeypatch):
    """Spark's driver and its checkpoint may be on the same one."""
    monkeypatch.setattr(kept_rows, "LEFT_FREE_BYTES", 1 << 80)
    monkeypatch.setattr(kept_rows, "_LEFT_FREE_SHARE", 1)
    with pytest.raises(OSError, match="left to others"):
        keep(path, (0, 1, 1, b"a"))


def test_what_is_read_can_be_removed_meanwhile(path):
    """A commit that has begun to read goes on."""
    kept = keep(path, (0, 1, 1, b"a"))
    rows = PromisedRows(path, {0: (1, 1)})
    kept.remove()
    kept.remove()
    assert not path.exists()
    assert list(rows.bodies()) == list(rows.bodies()) == [b"a"]
    with pytest.raises(FileNotFoundError):
        PromisedRows(path, {0: (1, 1)})
