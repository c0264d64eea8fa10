"""
A receiver that is killed or freezes costs no query: it goes on by itself, with each row once.

The driver is one that gives no task a second try, as `local[*]` is. Covers: sink.data_source.receiver.client,
sink.data_source.task_writer.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.audit import wrong_ledger
from support.fixtures.driver import wait_until
from support.inbox import Inbox, events
from support.patience import PATIENCE_SECONDS
from support.signals import strike

pytestmark = pytest.mark.spark

# An Arrow batch is 500 kB, so that Spark holds none back, and more than 8 MiB are sent before the gate: a task that has
# sent as much has heard that its first rows are kept.
WIDTH = 100_000
ROWS_A_BATCH = 5
ROWS = 150
GATED_BATCH = 24


def receivers():
    """The receivers that this test's driver has started."""
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if "pgonce.sink.data_source.receiver.process" in " ".join(process.cmdline()):
                yield process


def kept():
    """The file in which a receiver keeps rows just now, with that receiver."""
    for process in receivers():
        with suppress(psutil.NoSuchProcess):
            for file in process.open_files():
                if "pgonce-receiver-" in file.path:
                    return Path(file.path), process
    return None


def gate(folder):
    """What a task does with its batches: in the middle, it waits as long as there is a file that says so."""

    def gated(batches):
        for number, batch in enumerate(batches):
            if number == GATED_BATCH:
                (folder / "waiting").touch()
                while (folder / "wait").exists():
                    time.sleep(0.02)
            yield batch

    return gated


class Query:
    """A query with a receiver, which has written its first batch."""

    def __init__(self, spark, url, folder, checkpoint, observer):
        self.folder, self.checkpoint, self.observer = folder, checkpoint, observer
        self.inbox = Inbox(folder / "inbox")
        self.inbox.add(1)
        frame = events(spark, self.inbox.folder).selectExpr("id", f"repeat('x', {WIDTH}) AS filler")
        options = {"url": url, "table": "events", "createTable": "true", "inlineBytes": "0", "receiver": "auto"}
        self._query = (
            frame.mapInArrow(gate(folder), "id bigint, filler string")
            .writeStream.format("pgonce")
            .options(**options, retryTimeout="60", lockTimeout="5")
            .option("checkpointLocation", checkpoint)
            .start()
        )
        self._query.processAllAvailable()

    def wait_in_a_task(self):
        """Let the next batch's task wait after some rows; the file that has some of them by then, and its receiver."""
        (self.folder / "wait").touch()
        self.inbox.add(ROWS)
        assert wait_until((self.folder / "waiting").exists, PATIENCE_SECONDS)
        assert wait_until(lambda: kept() is not None and kept()[0].stat().st_size > 10_000_000)
        return kept()

    def go_on(self):
        """The task need not wait any longer."""
        (self.folder / "wait").unlink()

    def finish(self):
        """Wait until the query has read all there is, without a failure; how the rows of its batches came."""
        self._query.processAllAvailable()
        self._query.stop()
        found = self.observer.execute("SELECT id FROM events ORDER BY id").fetchall()
        assert found == [(row[0],) for row in self.inbox.rows]
        assert wrong_ledger(self.observer, self.checkpoint) == []
        assert self.observer.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone() == (0,)
        batches = self.observer.execute("SELECT transport FROM pgonce.batches ORDER BY batch_id").fetchall()
        return [transport for (transport,) in batches]


@pytest.fixture
def query(spark, tmp_path, checkpoint, observer, url):
    """The query, whose Arrow batches have few rows."""
    setting = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(setting)
    spark.conf.set(setting, ROWS_A_BATCH)
    yield Query(spark, url, tmp_path, checkpoint, observer)
    spark.conf.set(setting, before)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        # The task waits for it, and so does the commit, a minute in all. test_process.py has the same without Spark.
        pytest.param(signal.SIGSTOP, id="frozen", marks=[pytest.mark.slow, pytest.mark.long]),
    ],
)
def test_lost_while_a_task_sends(query, fault):
    """The task stages what was not acknowledged, and the commit finds the rest in the file, which goes then."""
    file, receiver = query.wait_in_a_task()
    strike(receiver.pid, fault)
    query.go_on()
    assert query.finish() == ["received", "received+staged"]
    assert not file.exists()
    assert not receiver.is_running() or receiver.status() == psutil.STATUS_ZOMBIE
