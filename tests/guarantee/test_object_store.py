"""
A stream with its checkpoint in an object store: every row is in the table once, even if its driver is killed.

Covers: sink.identity.from_running_query, sink.identity.planned_batch.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import psycopg
import pytest
from object_store import ObjectStore
from support import queries_job
from support.audit import left_behind, wrong_rows
from support.fixtures.driver import Driver, with_tests_on_path
from support.fixtures.spark import KILLED_IN_ITS_FIRST_BATCH, spark_settings
from support.gate import gate
from support.inbox import Inbox, create_events
from support.ways_in import Sink

from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.checkpoint.writer import CheckpointWriter
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.recovery.doctor import Finding, examine

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# One writes by the sink, one in foreachBatch.
WAYS = ("staged", "writer_append")


class Job:
    """Two queries over one inbox, with their checkpoints in the store."""

    def __init__(self, home: Any, url: str, store: ObjectStore, start_driver: Callable[..., Driver]) -> None:
        self._home, self._url, self._object_store, self._start_driver = home, url, store, start_driver
        self.store = f"s3a://{store.bucket}/{secrets.token_hex(4)}"
        self.inbox = Inbox(home / "inbox")
        for name in WAYS:
            create_events(url, f"events_{name}", keyed=False)

    def start(self, *, spark_alone: bool = False) -> Driver:
        """Start the driver; ``spark_alone`` lets only Spark's settings have credentials, and not the environment."""
        settings = spark_settings(self._home, kafka=False) | self._object_store.spark_settings()
        settings |= KILLED_IN_ITS_FIRST_BATCH
        env = self._object_store.environment()
        if spark_alone:
            for name, variable in {"access": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY"}.items():
                settings[f"spark.hadoop.fs.s3a.{name}.key"] = env.pop(variable)
            # pyarrow looks there too.
            env |= {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "HOME": str(self._home)}
        sinks = {name: asdict(Sink(self._url, f"events_{name}", self.checkpoint(name))) for name in WAYS}
        signs = str(self._home / f"signs-{secrets.token_hex(4)}")
        self.told = queries_job.Job(signs, str(self.inbox.folder), sinks, settings, {"availableNow": True})
        told = self.told.to_json()
        self.told.sign("go").touch()
        return self._start_driver(queries_job.__file__, told, env={**env, **with_tests_on_path()})

    def checkpoint(self, name: str) -> str:
        """Where a query has its checkpoint."""
        return f"{self.store}/checkpoints/{name}"


@pytest.fixture
def job(tmp_path, url, object_store, start_driver) -> Job:
    """The two queries; nothing has run yet."""
    return Job(tmp_path, url, object_store, start_driver)


def run_to_the_end(job: Job) -> None:
    """Run the queries over all there is; none may fail."""
    driver = job.start()
    assert driver.wait() == 0, driver.output()[-6000:]
    assert {name: job.told.ending(name) for name in WAYS} == dict.fromkeys(WAYS, "")


def published(observer: psycopg.Connection) -> dict[str, list[int]]:
    """The batches that each query has published, in their order."""
    found = observer.execute(
        "SELECT query_name, array_agg(batch_id ORDER BY batch_id) FROM pgonce.batches "
        "JOIN pgonce.writers USING (writer_id) GROUP BY 1"
    )
    return dict(found.fetchall())


def assert_all_is_there(job: Job, observer: psycopg.Connection, batches: int) -> None:
    """Each row is in each table once, and the ledger has every batch."""
    for name in WAYS:
        assert wrong_rows(observer, f"events_{name}", job.inbox.rows) == []
    assert published(observer) == {name: list(range(batches)) for name in WAYS}
    assert left_behind(observer) == []


def test_killed_and_started_again(job, weak_store, url, observer):
    """Killed in the transaction, and after COMMIT: sink and foreachBatch go on, once; doctor reads the same store."""
    job.inbox.add(10)
    job.inbox.add(10)
    ensure_ledger(url)
    with gate(url, batch_id=1, ends=True) as waiting:
        driver = job.start()
        driver.wait_for(lambda: observer.execute(waiting).fetchone() == (len(WAYS),), "both queries to wait")
        driver.sigkill()
    assert published(observer) == {name: [0] for name in WAYS}
    for name in WAYS:
        assert examine(job.checkpoint(name), url).next_batch_id == 1
    run_to_the_end(job)
    assert_all_is_there(job, observer, 2)
    # As if it had been killed after COMMIT, and before Spark's own note of it.
    for name in WAYS:
        CheckpointWriter(job.checkpoint(name)).remove("commits/1")
    run_to_the_end(job)
    assert_all_is_there(job, observer, 2)
    assert observer.execute("SELECT array_agg(batch_id) FROM pgonce.replays").fetchone() == ([1] * len(WAYS),)
    for name in WAYS:
        assert examine(job.checkpoint(name), url).finding is Finding.AGREE
    ways = observer.execute("SELECT query_name, offsets_read_by FROM pgonce.writers ORDER BY 1").fetchall()
    assert ways == [("staged", "pyarrow"), ("writer_append", "spark")]


def test_only_spark_has_credentials(job, weak_store, observer):
    """The sink says what it lacks and what to do, and writes nothing; foreachBatch reads through Spark and goes on."""
    job.inbox.add(10)
    driver = job.start(spark_alone=True)
    assert driver.wait() == 0
    assert job.told.ending("writer_append") == ""
    assert wrong_rows(observer, "events_writer_append", job.inbox.rows) == []
    refused = job.told.ending("staged")
    assert "[CHECKPOINT_UNREADABLE]" in refused
    assert "AWS_*" in refused
    assert "PostgresBatchWriter" in refused
    assert observer.execute("SELECT count(*) FROM events_staged").fetchone() == (0,)
    ways = observer.execute("SELECT query_name, offsets_read_by FROM pgonce.writers").fetchall()
    assert ways == [("writer_append", "spark")]
    # A person with credentials reads what Spark has written.
    assert Checkpoint(job.checkpoint("writer_append")).batch_ids() == ([0], [0])
