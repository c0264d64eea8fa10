"""
Which way rows go if the user sets nothing: small batches in commit messages, large ones to a receiver.

Covers: sink.data_source.receiver.launch, sink.data_source.task_writer.
"""

from __future__ import annotations

import json
from contextlib import suppress

import psutil
import pytest

pytestmark = pytest.mark.spark

# A large batch has one partition of 13 MB, more than any task may hold for its commit message.
SMALL, LARGE = (10, 10), (1300, 10_000)


def receivers():
    """The processes of receivers that this test's Spark has started."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "pgonce.sink.data_source.receiver.process" in " ".join(process.cmdline()):
                found.add(process.pid)
    return found


def test_large_batches_are_received_and_small_ones_start_no_process(spark, url, observer, checkpoint, tmp_path):
    """Also the first large batch, whose own task has the receiver start."""
    folder = tmp_path / "source"
    folder.mkdir()
    frame = spark.readStream.schema("id long, width int").json(str(folder)).coalesce(1)
    query = (
        frame.selectExpr("id", "repeat('x', width) AS filler")
        .writeStream.format("pgonce")
        .options(url=url, table="events", createTable="true", checkpointLocation=checkpoint)
        .start()
    )
    rows = 0
    try:
        for number, (count, width) in enumerate((SMALL, LARGE, SMALL)):
            before = receivers()
            lines = [json.dumps({"id": rows + n, "width": width}) for n in range(count)]
            (tmp_path / "written").write_text("\n".join(lines))
            (tmp_path / "written").rename(folder / f"{number}.json")
            query.processAllAvailable()
            rows += count
            if width == SMALL[1]:
                assert receivers() <= before
    finally:
        query.stop()
    batches = observer.execute("SELECT transport FROM pgonce.batches ORDER BY batch_id").fetchall()
    assert [way for (way,) in batches] == ["inline", "received", "inline"]
    assert observer.execute("SELECT count(*), count(DISTINCT id), sum(length(filler)) FROM events").fetchone() == (
        rows, rows, 13_000_200
    )  # fmt: skip
