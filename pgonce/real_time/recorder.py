"""
Record what a running query has done, stop it if another run has taken over, and say so if partitions are not read.

Runs on the driver, in a thread for each query, until the query ends. Invariant: it decides nothing about rows, which
are in the table before. If it cannot record something, the next look does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyspark import SparkContext, StatusTracker
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from pgonce.offsets_store.errors import BrokersError, PgonceError, RefusedBatch, said_in
from pgonce.offsets_store.kafka.broker import topic_ids
from pgonce.offsets_store.kafka.settings import Brokers
from pgonce.offsets_store.ledger.failures import Failed, failures_kept, keep_failure
from pgonce.offsets_store.offsets import Offsets, TopicPartition, is_kafka, parse_offset

from .positions import SOURCE
from .run import Run

_log = logging.getLogger("pgonce")

_LOOK_SECONDS = 0.5
# Epochs may be far shorter than a batch, and each record is a commit.
_RECORD_SECONDS = 5.0
# Tasks start within a second; and how often it is said that some do not.
_WAITING_SECONDS = 10.0
_SAID_SECONDS = 60.0
# How often brokers are asked whether topics are still those with which the run began.
_TOPICS_SECONDS = 60.0
# How long a query that is refused waits for rows.
_TASKS_SECONDS = 20
# When the query has ended: what is not recorded then is counted by the next start.
_LAST_TRIES = 3


class Recorder(threading.Thread):
    """
    Follows one query.

    :param query: the query, which has been started.
    :param writer: the driver's object of the writer in Java, to which tasks report; None if they do not.
    :param kafka: the brokers of its topics.
    """

    def __init__(self, query: StreamingQuery, run: Run, writer: Any, context: SparkContext, kafka: Brokers) -> None:
        super().__init__(daemon=True, name=f"pgonce records {run.query_id}")
        self._query = query
        self._run = run
        self._writer = writer
        self._tracker = context.statusTracker()
        # By stage: each batch in real time has one, whose tasks wait for a moment when it begins.
        self._waiting_since: dict[int, float] = {}
        self._said_at = float("-inf")
        self._kafka = kafka
        self._topics_at = time.monotonic()

    def run(self) -> None:
        """The thread."""
        due, last_tries = time.monotonic() + _RECORD_SECONDS, _LAST_TRIES
        while True:
            try:
                is_active = self._query.isActive
                if not is_active or time.monotonic() >= due:
                    due = time.monotonic() + _RECORD_SECONDS
                    self._record()
                    self.look_at_tasks(time.monotonic())
                    if time.monotonic() - self._topics_at >= _TOPICS_SECONDS:
                        self._look_at_topics()
                if not is_active:
                    self._look_at_failure()
                    return
            except RefusedBatch as refused:
                _log.error("query %s stops: %s", self._run.query_id, refused)
                self._stop_query()
                return
            except PgonceError as error:
                _log.warning("what query %s has done is not recorded now: %s", self._run.query_id, error)
                last_tries -= not is_active
                if not last_tries:
                    return
            except Exception as error:  # noqa: BLE001 (Spark's session has ended, and Py4J has many errors for that)
                _log.info("query %s is not followed any longer: %s", self._run.query_id, type(error).__name__)
                return
            time.sleep(_LOOK_SECONDS)

    # Not _stop, which Python's own threads have, and call in each process that is forked.
    def _stop_query(self) -> None:
        # A task is refused with its next rows, and then the query ends with that error. A stop would give it none.
        with suppress(StreamingQueryException):
            if not self._query.awaitTermination(_TASKS_SECONDS):
                self._query.stop()

    def _record(self) -> None:
        # First what Spark has done, and then what tasks have reached: the other way round, it could be less.
        # A continuous query has no progress, and its tasks report nothing.
        ends = None if self._writer is None else ends_of(self._query.lastProgress or {}) or self._run.ends
        # Also if no batch has ended since: where no records come, no task finds out what has happened to the ledger.
        with failures_kept(self._run.settings.url, self._failed()):
            # Without reports, a position in the database that went back could not be told from one that stayed.
            self._run.record({} if self._writer is None else reported(self._writer.known()), ends)

    def look_at_tasks(self, now: float) -> None:
        """
        Say so if tasks get no core: a start counts the cores that there are, but other queries may take them.

        :param now: the time in seconds, of a clock that is never set.
        """
        waiting = waiting_tasks(self._tracker, str(self._query.runId))
        self._waiting_since = {stage: self._waiting_since.get(stage, now) for stage in waiting}
        long_ago = now - _WAITING_SECONDS
        left = sum(tasks for stage, tasks in waiting.items() if self._waiting_since[stage] <= long_ago)
        if left and now - self._said_at >= _SAID_SECONDS:
            self._said_at = now
            _log.warning(
                "[TOO_FEW_CORES] Partitions of query %s are not read: Spark has no core left for %s of its tasks. "
                "Nothing is lost; they are read once it has. Help: Give the application more cores, or run other "
                "queries in another one.",
                self._run.query_id,
                left,
            )

    def _look_at_topics(self) -> None:
        """Refuse topics that were created again: Spark may read a new one from where the old one ended."""
        self._topics_at = time.monotonic()
        try:
            found = topic_ids(self._run.topic_ids, self._kafka)
        except BrokersError as error:
            _log.info("topics of query %s are not looked at now: %s", self._run.query_id, error)
            return
        with failures_kept(self._run.settings.url, self._failed()):
            self._run.refuse_recreated(found)

    def _look_at_failure(self) -> None:
        """Keep the error with which the query has ended, if it has one."""
        error = self._query.exception()
        if error is None:
            return
        said = said_in(str(error))
        if said is not None:
            keep_failure(self._run.settings.url, self._failed(), said.code, said.sentences, remedy=said.remedy)
        else:
            # Spark may have been first: where the old topic ended, the new one may have no record yet.
            self._look_at_topics()

    def _failed(self) -> Failed:
        return self._run.failed("commit", self._run.batch_id + 1)


def waiting_tasks(tracker: StatusTracker, run_id: str) -> dict[int, int]:
    """How many tasks of each stage of a query's run wait for a core."""
    waiting: dict[int, int] = {}
    for job_id in tracker.getJobIdsForGroup(run_id):
        job = tracker.getJobInfo(job_id)
        for stage_id in job.stageIds if job is not None and job.status == "RUNNING" else ():
            stage = tracker.getStageInfo(int(stage_id))
            left = 0 if stage is None else stage.numTasks - stage.numActiveTasks - stage.numCompletedTasks
            if left:
                waiting[int(stage_id)] = left
    return waiting


def ends_of(progress: Mapping[str, Any]) -> Offsets | None:
    """Where Spark's last batch has ended, by an event of the query's progress; None if it does not say."""
    sources = progress.get("sources")
    end = sources[0]["endOffset"] if sources else None
    if isinstance(end, str):
        end = parse_offset(end)
    return {SOURCE: end} if is_kafka(end) else None


def reported(known: list[str]) -> dict[TopicPartition, int]:
    """Where tasks have left each partition, as they report it: topic, partition and offset, with spaces between."""
    parts = (text.rsplit(" ", 2) for text in known)
    return {(topic, int(partition)): int(offset) for topic, partition, offset in parts}
