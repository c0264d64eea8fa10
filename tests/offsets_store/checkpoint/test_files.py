"""Reading a checkpoint from disk: the I/O and its failures, without Spark."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgonce.offsets_store.checkpoint.files import open_location, open_recorded, without_credentials
from pgonce.offsets_store.checkpoint.log_entries import OffsetLog
from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.errors import CheckpointError

QUERY_ID = "f4f7c933-216b-4214-a5db-99a58d39e9f0"
FILES = {
    "metadata": f'{{"id":"{QUERY_ID}"}}'.encode(),
    "offsets/0": b'v1\n{"batchTimestampMs":1}\n{"t":{"0":5,"1":0}}\n-',
    "offsets/9": b'v1\n{"batchTimestampMs":2}\n{"t":{"1":1,"0":6}}\n{"logOffset":0}',
    "offsets/10": b'v1\n{"batchTimestampMs":3}\n{"t":{"0":7,"1":2}}\n{"logOffset":1}',
    "offsets/.10.crc": b"crc",
    "offsets/.11.6e0ff0c5.tmp": b"v1",
    "offsets/9.compact": b"v1",
    "offsets/٢٠": b"v1",
    "commits/0": b'v1\n{"nextBatchWatermarkMs":0}',
    "commits/9": b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{}}',
    "sources/0/0": b'\x00v1\n{"t":{"0":3,"1":0}}',
    "sources/1/0": b'v1\n{"path":"file:///in/a.json","timestamp":1,"batchId":0}',
    "state/0/_metadata/metadata": b"v1\n{}",
}


def write(folder: Path, files: dict[str, bytes]) -> None:
    """Write files under a folder, by name."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of two sources (Kafka and files) whose batch 10 is planned and not done."""
    write(tmp_path / "ckpt", FILES)
    return tmp_path / "ckpt"


def assert_reads_all(checkpoint: Checkpoint) -> None:
    """Ask a checkpoint made of FILES everything."""
    assert checkpoint.query_id() == QUERY_ID
    assert checkpoint.batch_ids() == ([0, 9, 10], [0, 9])
    assert checkpoint.offset_log(9).text.encode() == FILES["offsets/9"]
    assert checkpoint.offset_log(9).offsets == {"0": {"t": {"0": 6, "1": 1}}, "1": {"logOffset": 0}}
    assert checkpoint.find_offset_log(8) is None
    newest = checkpoint.newest_offset_entry()
    assert (newest.batch_id, newest.sha256) == (10, hashlib.sha256(FILES["offsets/10"]).hexdigest())
    assert checkpoint.offset_log(10).sha256 == newest.sha256
    assert checkpoint.commit_log(9).version == 2
    assert checkpoint.commit_log(10) is None
    assert checkpoint.is_committed(9)
    assert not checkpoint.is_committed(10)
    assert checkpoint.initial_offsets() == {"0": {"t": {"0": 3, "1": 0}}}
    assert checkpoint.is_stateful()


class TestLocal:
    def test_entries_are_found_by_number_and_other_files_are_passed_over(self, folder):
        """Entries are found by number, not by name, and what else lies in the folders is passed over."""
        assert_reads_all(Checkpoint(str(folder)))

    def test_ways_to_write_one_place(self, folder, monkeypatch):
        """Path, relative path and both kinds of file URI are one place, and are shown as one."""
        monkeypatch.chdir(folder.parent)
        ways = [f"{folder}", f"{folder}/", "ckpt", "./ckpt", f"file:{folder}", f"file://{folder}", f"FILE:{folder}"]
        assert {Checkpoint(way).location for way in ways} == {str(folder)}
        assert {Checkpoint(way).query_id() for way in ways} == {QUERY_ID}

    def test_relative_path_is_bound_when_made(self, folder, monkeypatch):
        """A later change of directory does not move the checkpoint."""
        monkeypatch.chdir(folder.parent)
        checkpoint = Checkpoint("ckpt")
        monkeypatch.chdir("/")
        assert checkpoint.query_id() == QUERY_ID

    def test_characters_count_as_they_are(self, tmp_path):
        """Hadoop decodes nothing in a path, so a percent sign, a space, ? and # are themselves."""
        write(tmp_path / "a%20b c?x=1#é", FILES)
        assert Checkpoint(f"{tmp_path}/a%20b c?x=1#é").query_id() == QUERY_ID
        assert Checkpoint(f"file://{tmp_path}/a%20b c?x=1#é").query_id() == QUERY_ID

    def test_survives_the_trip_to_a_worker(self, folder):
        """A checkpoint pickles, used or not."""
        checkpoint = Checkpoint(str(folder))
        checkpoint.query_id()
        assert pickle.loads(pickle.dumps(checkpoint)).query_id() == QUERY_ID

    def test_does_not_load_pyarrow(self, folder):
        """A local checkpoint is read without importing pyarrow, which costs more than the reading."""
        code = (
            "import sys; from pgonce.offsets_store.checkpoint.reader import Checkpoint;"
            f"Checkpoint({str(folder)!r}).newest_offset_entry(); sys.exit('pyarrow' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_a_query_before_its_first_batch_has_no_entry_and_no_state(self, tmp_path):
        """Before the first batch there is no entry, no start and no state."""
        write(tmp_path, {"metadata": FILES["metadata"]})
        checkpoint = Checkpoint(str(tmp_path))
        assert checkpoint.newest_offset_entry() is None
        assert checkpoint.batch_ids() == ([], [])
        assert checkpoint.initial_offsets() == {}
        assert not checkpoint.is_stateful()

    def test_a_named_source_keeps_its_start_under_its_name(self, tmp_path):
        """A named source keeps its start under its name."""
        write(tmp_path, {"sources/orders/0": FILES["sources/0/0"]})
        assert Checkpoint(str(tmp_path)).initial_offsets() == {"orders": {"t": {"0": 3, "1": 0}}}


ORDERS, CLICKS = ({"t": {"0": 3}}, {"t": {"0": 9}}), ({"u": {"0": 1}}, {"u": {"0": 2}})
"""Where a source began, and where batch 0 ends."""
INBOX = (None, {"logOffset": 0})
ORDERS_AGAIN = ({"t": {"0": 0}}, ORDERS[1])
PATTERN = ({}, None)


class TestInitialOffsets:
    @pytest.mark.parametrize(
        ("version", "folders", "entry", "found"),
        [
            (1, [ORDERS, CLICKS], {"0": ORDERS, "1": CLICKS}, {"0", "1"}),
            (1, [INBOX, ORDERS], {"0": INBOX, "1": ORDERS}, {"1"}),
            (1, [ORDERS, PATTERN], {"0": ORDERS, "1": PATTERN}, {"0", "1"}),
            # The union of orders with itself.
            (1, [ORDERS], {"0": ORDERS, "1": ORDERS}, {"0", "1"}),
            (2, [ORDERS], {"1": ORDERS}, {"1"}),
            # The union of the inbox, the inbox and orders.
            (1, [INBOX, ORDERS], {"0": INBOX, "1": INBOX, "2": ORDERS}, {"2"}),
            # The union of orders, orders and clicks.
            (1, [ORDERS, CLICKS], {"0": ORDERS, "1": ORDERS, "2": CLICKS}, set()),
            (2, [ORDERS, CLICKS], {"1": ORDERS, "2": CLICKS}, set()),
            # Where one of two starts is missing, no line is known to be the other's.
            (1, [INBOX, ORDERS], {"0": CLICKS, "1": ORDERS}, set()),
            (2, [INBOX, ORDERS], {"1": ORDERS, "2": ORDERS_AGAIN}, set()),
        ],
    )
    def test_sources_are_those_of_the_entry(self, version, folders, entry, found, tmp_path):
        """A start has the id that its source has in the entry; if that is not known, there is no start."""
        for number, (start, _) in enumerate(folders):
            write(
                tmp_path, {f"sources/{number}/0": f"\0v1\n{json.dumps(start)}".encode() if start is not None else b"v1"}
            )
        log = OffsetLog(version, {}, {source_id: end for source_id, (_, end) in entry.items()}, "")
        assert Checkpoint(str(tmp_path)).initial_offsets(log) == {source_id: entry[source_id][0] for source_id in found}


class TestWaiting:
    @pytest.mark.parametrize("first", [{}, {"offsets/11": FILES["offsets/10"][:20]}], ids=["missing", "half written"])
    def test_a_file_that_comes_late_is_waited_for(self, folder, first):
        """Asynchronous progress tracking writes it after the rows came; a rename that copies shows a part of it."""
        write(folder, first)
        late = threading.Timer(0.2, write, [folder, {"offsets/11": FILES["offsets/10"]}])
        late.start()
        assert Checkpoint(str(folder)).offset_log(11, wait_seconds=20).text.encode() == FILES["offsets/10"]
        late.join()

    def test_a_file_that_never_comes_is_an_error_after_the_time_given(self, folder):
        """A file that never comes is an error after the time given, which names what there is instead."""
        start = time.monotonic()
        with pytest.raises(CheckpointError, match=r"OFFSETS_NOT_FOUND.* 11 .*0\.3 .* 0 to 10"):
            Checkpoint(str(folder)).offset_log(11, wait_seconds=0.3)
        assert 0.3 <= time.monotonic() - start < 5

    def test_without_a_wait_it_fails_at_once(self, tmp_path):
        """No time given means one look."""
        with pytest.raises(CheckpointError, match="OFFSETS_NOT_FOUND"):
            Checkpoint(str(tmp_path)).offset_log(0)


def code_of(location: str) -> str:
    """Return the code of the error that opening and reading a location ends in."""
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(location).query_id()
    assert caught.value.data == "Nothing was written."
    assert caught.value.remedy
    return caught.value.code


class TestTrouble:
    @pytest.mark.parametrize(
        "location",
        ["", "file:ckpt", "file:", "file://host/ckpt", "dbfs:/ckpt", "a:b/c", "s3a:/b/c", "s3a:///c", "s3a:c"],
    )
    def test_a_location_that_cannot_be_reached_is_refused_at_once(self, location):
        """A location that Spark itself refuses, or that Python cannot reach, is named as such at once."""
        assert code_of(location) == "CHECKPOINT_LOCATION"

    def test_a_missing_or_empty_folder_or_a_file_is_no_checkpoint(self, tmp_path):
        """A folder that is missing, or empty, or a file, is no checkpoint."""
        (tmp_path / "file").touch()
        assert code_of(f"{tmp_path}/missing") == "CHECKPOINT_NOT_FOUND"
        assert code_of(str(tmp_path)) == "CHECKPOINT_NOT_FOUND"
        assert code_of(f"{tmp_path}/file") == "CHECKPOINT_NOT_FOUND"

    def test_what_the_disk_does_not_give_is_never_an_absent_file(self, tmp_path):
        """What the disk refuses to give is an error, never an absent file."""
        (tmp_path / "metadata").mkdir()
        (tmp_path / "offsets").symlink_to("offsets")
        assert code_of(str(tmp_path)) == "CHECKPOINT_UNREADABLE"
        for ask in ("batch_ids", "newest_offset_entry"):
            with pytest.raises(CheckpointError, match="CHECKPOINT_UNREADABLE"):
                getattr(Checkpoint(str(tmp_path)), ask)()
        with pytest.raises(CheckpointError, match="CHECKPOINT_UNREADABLE"):
            Checkpoint(str(tmp_path)).find_offset_log(0)

    def test_a_folder_that_may_not_be_entered_is_an_error(self, folder):
        """A folder that this user may not enter is an error, never an absent file."""
        folder.chmod(0)
        try:
            with as_nobody():
                assert code_of(str(folder)) == "CHECKPOINT_UNREADABLE"
                with pytest.raises(CheckpointError, match="CHECKPOINT_UNREADABLE"):
                    Checkpoint(str(folder)).is_stateful()
        finally:
            folder.chmod(0o700)

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"", "CHECKPOINT_MALFORMED"),
            (b"v1\n{}\n\xff", "CHECKPOINT_MALFORMED"),
            (b'v1\n{"batch', "CHECKPOINT_MALFORMED"),
            (b"v7\n{}\n1", "PGONCE_TOO_OLD"),
        ],
    )
    def test_damaged_entry_names_the_file(self, folder, data, code):
        """Empty, cut, unknown or not UTF-8: the error says which file it is, wherever it is read."""
        write(folder, {"offsets/10": data, "commits/10": data})
        checkpoint = Checkpoint(str(folder))
        for name, ask in (("offsets", checkpoint.offset_log), ("commits", checkpoint.commit_log)):
            with pytest.raises(CheckpointError, match=f"{folder}/{name}/10") as caught:
                ask(10)
            assert caught.value.code == code


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up root's right to read everything, where the tests run as root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("s3a://K:S@b/p", "s3a://b/p"),
        ("s3a://K:S/S/S@b/p", "s3a://b/p"),
        ("s3a://K@b/p?secret=S", "s3a://b/p"),
        ("s3a://b/p@q", "s3a://b/p@q"),
        ("hdfs://nn:8020/user@home/x", "hdfs://nn:8020/user@home/x"),
        ("hdfs://user:S@nn:8020/x", "hdfs://nn:8020/x"),
        ("abfss://c@a.dfs.core.windows.net/p", "abfss://c@a.dfs.core.windows.net/p"),
        ("abfss://c:S@a.dfs.core.windows.net/p?sig=S", "abfss://c@a.dfs.core.windows.net/p"),
        ("/p@q?r", "/p@q?r"),
        ("file:/p@q?r", "file:/p@q?r"),
        ("weird://K:S@b/p", "weird://b/p"),
    ],
)
def test_credentials_and_queries_are_cut_out_of_a_location(location, shown):
    """Logins and queries go; addresses, ports and plain paths stay."""
    assert without_credentials(location) == shown


@pytest.mark.parametrize(
    "location",
    [
        "s3a://key:secret@bucket/ckpt",
        "s3a://bucket/ckpt?endpoint_override=evil.example.com",
        "gs://bucket/ckpt?endpoint_override=evil.example.com",
        "hdfs://user@evil.example.com:8020/ckpt",
        "",
        None,
    ],
)
def test_a_location_that_the_ledger_has_names_no_other_server(location):
    """Roles can write it, and credentials of an administrator's process would be shown to that server."""
    with pytest.raises(CheckpointError, match="CHECKPOINT_LOCATION") as error:
        open_recorded(location)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("location", ["/ckpt", "file:/ckpt", "s3a://bucket/ckpt", "hdfs://nn:8020/ckpt", "/odd?name"])
def test_a_location_as_pgonce_records_it_is_opened(location):
    """Nothing is read yet."""
    assert open_recorded(location).shown == open_location(location).shown
