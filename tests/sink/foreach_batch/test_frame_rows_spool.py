"""Where what has arrived waits for a second try: in memory, then in a file that nobody else sees and nobody deletes."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from pgonce.offsets_store.errors import CommitError
from pgonce.sink.foreach_batch.frame_rows import Spool


def rows(number):
    """A record batch of a few kilobytes."""
    return pa.RecordBatch.from_pydict({"id": [*range(1000 + number)], "said": ["rows"] * (1000 + number)})


@pytest.mark.parametrize("in_memory_bytes", [0, 50_000, 10_000_000], ids=["in the file", "in both", "in memory"])
def test_what_was_added_is_read_while_more_is_added(in_memory_bytes):
    """Each batch comes back as it was added, in any thread, while others are added."""
    spool = Spool(in_memory_bytes)
    batches = [rows(number) for number in range(100)]
    with ThreadPoolExecutor(4) as pool:
        read = []
        for number, batch in enumerate(batches):
            spool.add(batch)
            read.append(pool.submit(spool.__getitem__, number))
    assert [answer.result() for answer in read] == batches
    assert (len(spool), spool.size) == (len(batches), sum(batch.nbytes for batch in batches))


def test_what_memory_holds_is_kept_as_it_is():
    """A batch within the bound is not turned into bytes; one past it comes back from them."""
    first, second = rows(0), rows(1)
    spool = Spool(first.nbytes)
    spool.add(first)
    spool.add(second)
    assert spool[0] is first
    assert spool[1] == second
    assert spool[1] is not second


def test_nothing_is_written_before_memory_is_full(tmp_path, monkeypatch):
    """A batch that memory holds leaves the disk alone; and the file has no name that could be left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    spool = Spool(rows(0).nbytes)
    spool.add(rows(0))
    (tmp_path / "not there").mkdir()
    spool.add(rows(0))
    assert list((tmp_path / "not there").iterdir()) == []


def test_no_room_is_an_error_in_words(tmp_path, monkeypatch):
    """It says where there is no room; nothing was written to the table."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    with pytest.raises(CommitError, match="DISK_FULL.*TMPDIR"):
        Spool(0).add(rows(0))
