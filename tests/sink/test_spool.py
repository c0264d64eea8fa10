"""Where what has arrived waits for a second try: in memory, then in a file that nobody else sees and nobody deletes."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgonce.offsets_store.errors import CommitError
from pgonce.sink.spool import Spool


def spool_of(in_memory_bytes):
    """A spool of bytes, as the receiver's is."""
    return Spool(in_memory_bytes, memoryview, bytes)


@pytest.mark.parametrize("in_memory_bytes", [0, 50_000, 10_000_000], ids=["in the file", "in both", "in memory"])
def test_what_was_added_is_read_while_more_is_added(in_memory_bytes):
    """Each item comes back as it was added, in any thread, while others are added."""
    spool = spool_of(in_memory_bytes)
    bodies = [bytes([number]) * (10_000 + number) for number in range(100)]
    with ThreadPoolExecutor(4) as pool:
        read = []
        for number, body in enumerate(bodies):
            spool.add(body, len(body))
            read.append(pool.submit(spool.__getitem__, number))
    assert [answer.result() for answer in read] == bodies
    assert (len(spool), spool.size) == (len(bodies), sum(map(len, bodies)))


def test_what_memory_holds_is_kept_as_it_is():
    """An item within the bound is not turned into bytes; one past it comes back from them."""
    spool = Spool(4, lambda item: memoryview(item.encode()), lambda body: f"{body.decode()} from the file")
    for item in ("rows", "more"):
        spool.add(item, 4)
    assert [*spool] == ["rows", "more from the file"]


def test_nothing_is_written_before_memory_is_full(tmp_path, monkeypatch):
    """A batch that memory holds leaves the disk alone; and the file has no name that could be left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    spool = spool_of(4)
    spool.add(b"rows", 4)
    (tmp_path / "not there").mkdir()
    spool.add(b"more", 4)
    assert list((tmp_path / "not there").iterdir()) == []


def test_no_room_is_an_error_in_words(tmp_path, monkeypatch):
    """It says where there is no room; nothing was written to the table."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    with pytest.raises(CommitError, match="ROWS_NOT_KEPT.*not there.*TMPDIR"):
        spool_of(0).add(b"rows", 4)
