"""A checkpoint's files, read where only Spark can: the same answers as of a folder of this machine."""

from __future__ import annotations

import pytest

from pgonce.offsets_store.checkpoint.files import LocalFiles
from pgonce.offsets_store.errors import CheckpointError
from pgonce.sink.identity.from_running_query import SparkFiles

pytestmark = pytest.mark.spark

FILES = {
    "metadata": b'{"id":"f4f7c933-216b-4214-a5db-99a58d39e9f0"}',
    "offsets/0": "v1\n{}\nStraße \u2028".encode(),
    "sources/0/0": b'\x00v1\n{"t":{"0":3}}',
    "commits/a%20b": b"\xff\r\n",
}


@pytest.fixture
def folder(tmp_path):
    """A folder with these files, under a name whose percent sign is one."""
    folder = tmp_path / "check%20point"
    for name, data in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_they_are_read_as_a_local_folder_is(spark, folder):
    """Every byte, every name, and what is not there."""
    local, by_spark = LocalFiles(str(folder)), SparkFiles(f"file:{folder}", spark)
    for name in (*FILES, "offsets/1", "nowhere/0"):
        assert by_spark.read(name) == local.read(name)
    for name in ("offsets", "commits", "sources", "nowhere"):
        assert sorted(by_spark.names(name)) == sorted(local.names(name))
        assert by_spark.exists(name) == local.exists(name)


def test_what_spark_cannot_read_is_an_error_without_credentials(spark, folder):
    """It names the file and the Java exception; what the location says of a login is left out."""
    files = SparkFiles(f"file:{folder}", spark)
    files.shown = "s3a://bucket"
    with pytest.raises(CheckpointError, match=r"CHECKPOINT_UNREADABLE.*s3a://bucket/offsets: java\.[\w.]+Exception"):
        files.read("offsets")
