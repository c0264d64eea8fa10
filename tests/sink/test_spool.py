"""Where what has arrived waits for a second try: a file that nobody else can see, and that goes away by itself."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from pgonce.offsets_store.errors import CommitError
from pgonce.sink.spool import OverflowFile


def test_what_was_written_is_read_while_more_is_added():
    """Each piece comes back as it went, from any thread, whatever is written meanwhile."""
    file = OverflowFile()
    bodies = [bytes([number]) * (10_000 + number) for number in range(100)]
    with ThreadPoolExecutor(4) as pool:
        read = [(body, pool.submit(file.read, file.write(memoryview(body)))) for body in bodies]
    assert all(body == answer.result() for body, answer in read)


def test_nothing_is_made_before_the_first_bytes(tmp_path, monkeypatch):
    """A batch that memory holds leaves the disk alone; and the file has no name that could be left behind."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    file = OverflowFile()
    (tmp_path / "not there").mkdir()
    file.write(memoryview(b"rows"))
    assert list((tmp_path / "not there").iterdir()) == []


def test_no_room_is_an_error_in_words(tmp_path, monkeypatch):
    """It says where there is no room; nothing was written to the table."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "not there"))
    with pytest.raises(CommitError, match="ROWS_NOT_KEPT.*not there.*TMPDIR"):
        OverflowFile().write(memoryview(b"rows"))
