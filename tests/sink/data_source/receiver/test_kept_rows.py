"""Rows that are kept in a file are those that were kept, whatever happened while it was written."""

from __future__ import annotations

import os
import resource

import pytest

from pgonce.sink.data_source.receiver import kept_rows
from pgonce.sink.data_source.receiver.kept_rows import KeptRows, PromisedRows
from pgonce.sink.positions import EncodedRows


@pytest.fixture
def path(tmp_path):
    """Where the file will be."""
    return tmp_path / "kept"


def keep(path, *bodies):
    """A file with these bodies, each with its partition, attempt and number of rows."""
    kept = KeptRows(path)
    for partition_id, attempt_id, rows, body in bodies:
        add(kept, partition_id, attempt_id, rows, body)
    return kept


def add(kept, partition_id, attempt_id, rows, body):
    """Keep this body, and the positions of its rows."""
    kept.add(partition_id, attempt_id, EncodedRows(body, rows, positions(body)))


def positions(body):
    """Stands for the positions of this body's rows; they are empty where rows carry none."""
    return b"" if body == b"a" else body[:1].upper() * 20


def promised(path, received):
    """What a commit reads: bodies, each with its own positions."""
    found = list(PromisedRows(path, received).rows())
    assert [rows.positions for rows in found] == [positions(rows.body) for rows in found]
    return [rows.body for rows in found]


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
    with pytest.raises(EOFError, match="are kept"):
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
            add(kept, 0, 1, 1, b"b" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.stat().st_size == size == kept.size
    add(kept, 0, 1, 1, b"c")
    assert promised(path, {0: (1, 2)}) == [b"a", b"c"]


def test_some_of_the_disk_is_left_to_others(path, monkeypatch):
    """Spark's driver and its checkpoint may be on the same one."""
    monkeypatch.setattr(kept_rows, "LEFT_FREE_BYTES", 1 << 80)
    monkeypatch.setattr(kept_rows, "_LEFT_FREE_SHARE", 1)
    with pytest.raises(OSError, match="left to others"):
        keep(path, (0, 1, 1, b"a"))


@pytest.fixture
def host(monkeypatch, tmp_path):
    """Makes a host with so much memory, in which a container may have less; device 7:3 is in memory, 7:4 is not."""
    forget = kept_rows.is_in_memory.cache_clear

    def make(available, **cgroup):
        proc, group = tmp_path / "proc", tmp_path / "cgroup"
        for path, text in {
            proc / "self/mountinfo": "20 1 7:4 / / rw - ext4 vda rw\n21 20 7:3 / /tmp rw shared:5 - tmpfs tmpfs rw\n",
            proc / "meminfo": f"MemTotal: 9999999 kB\nMemAvailable:  {available} kB\n",
            **{group / name.replace("__", "/").replace("_of_", "."): text for name, text in cgroup.items()},
        }.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        monkeypatch.setattr(kept_rows, "_PROC", proc)
        monkeypatch.setattr(kept_rows, "_CGROUP", group)
        forget()

    yield make
    forget()


@pytest.mark.parametrize(
    ("cgroup", "left"),
    [
        ({}, 8 * 1024),
        ({"memory_of_max": "max", "memory_of_current": "500"}, 8 * 1024),
        ({"memory_of_max": "5000", "memory_of_current": "1000"}, 4000),
        ({"memory__memory_of_limit_in_bytes": "3000", "memory__memory_of_usage_in_bytes": "1000"}, 2000),
    ],
)
def test_a_container_may_have_less_memory_than_its_host(cgroup, left, host):
    """And where nothing is known, nothing is forbidden."""
    host(8, **cgroup)
    assert kept_rows.memory_left() == left


def test_a_temporary_directory_in_memory_is_not_filled(host, path, monkeypatch):
    """Its limit is half of the memory, of which the driver has another half: rows that do not fit are staged."""
    host(8)
    assert kept_rows.is_in_memory(os.makedev(7, 3))
    assert not kept_rows.is_in_memory(os.makedev(7, 4))
    assert not kept_rows.is_in_memory(os.makedev(7, 5))
    monkeypatch.setattr(kept_rows, "is_in_memory", lambda _: True)
    kept = keep(path, (0, 1, 1, b"a" * 4096))
    with pytest.raises(OSError, match="the rest of the memory"):
        add(kept, 0, 1, 1, b"b" * 4096)
    add(kept, 0, 1, 1, b"c")
    monkeypatch.setattr(kept_rows, "is_in_memory", lambda _: False)
    add(kept, 0, 1, 1, b"b" * 4096)


def test_what_is_read_can_be_removed_meanwhile(path):
    """A commit that has begun to read goes on."""
    kept = keep(path, (0, 1, 1, b"a"))
    rows = PromisedRows(path, {0: (1, 1)})
    kept.remove()
    kept.remove()
    assert not path.exists()
    assert list(rows.rows()) == list(rows.rows()) == [EncodedRows(b"a", 1)]
    with pytest.raises(FileNotFoundError):
        PromisedRows(path, {0: (1, 1)})
