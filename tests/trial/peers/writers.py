"""
What runs the ways of a family: it is started, killed and frozen as a whole, and loses what it knows of its progress.

Runs in: the trial. Invariant: after a kill the same is started again, as whoever operates it would do.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from debezium import orders_connector
from flink_xa import FlinkJob, FlinkXa
from kafka_connect import KafkaConnect
from support.fixtures.driver import Driver, wait_until, with_tests_on_path
from support.fixtures.spark import spark_settings
from trial.peers import spark_job
from trial.peers.spark_job import Job
from trial.peers.topic import PARTITIONS
from trial.peers.ways import Lane

END_SECONDS = 240.0
_RESTARTS = 3
_ENDS = ("done", "stopped")
# With UNNEST, which is not its default, it cannot take Kafka's coordinates for a key.
_AS_BY_DEFAULT = {"dialect.postgres.unnest.insert.enabled": "false"}
_OF_DEBEZIUM = {
    "debezium_insert": {"insert.mode": "insert", "primary.key.mode": "none"},
    "debezium_coordinates": {"insert.mode": "upsert", "primary.key.mode": "kafka"},
    "debezium_upsert": {
        "insert.mode": "upsert",
        "primary.key.mode": "record_value",
        "primary.key.fields": "customer",
        "use.reduction.buffer": "true",
    },
}


@dataclass(frozen=True)
class Source:
    """What the writers of a round share: the topic, each lane's ways to Postgres, and a folder."""

    directory: Path
    servers: str
    topic: str
    lanes: Sequence[Lane]
    urls: dict[str, str]
    jdbc_urls: dict[str, str]
    url: str
    """Past all proxies."""


class Writer(ABC):
    """All lanes of one family."""

    def __init__(self, source: Source) -> None:
        self.source = source

    @abstractmethod
    def start(self) -> None:
        """Start, beside what still runs of it; it may need a while until it writes."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL what was started last."""

    @abstractmethod
    def processes(self) -> list[psutil.Process]:
        """What was started last."""

    @abstractmethod
    def kill_first(self) -> None:
        """SIGKILL what was started before the last."""

    @abstractmethod
    def lose_progress(self) -> None:
        """Forget how far each lane has come, while nothing runs."""

    @abstractmethod
    def keep_progress(self) -> None:
        """Copy what each lane knows of its progress."""

    @abstractmethod
    def restore_progress(self) -> None:
        """Put the copy in its place, while nothing runs."""

    @abstractmethod
    def failures(self) -> dict[str, str]:
        """For each lane that has failed, why."""

    @abstractmethod
    def finish(self, *, all_there: Callable[[], bool]) -> dict[str, str]:
        """
        Wait until all lanes have written what the topic holds.

        :param all_there: tells whether all tables are as they should be.
        :return: for each lane that has stopped, why.
        """

    @abstractmethod
    def close(self) -> None:
        """End all that runs."""


class WithFolder(Writer):
    """One whose progress is a folder."""

    @property
    def progress(self) -> Path:
        return self.source.directory / "checkpoints"

    def lose_progress(self) -> None:
        shutil.rmtree(self.progress)

    def keep_progress(self) -> None:
        # Files may vanish while they are copied, as they do for a user who copies a checkpoint in use.
        subprocess.run(["cp", "-a", self.progress, self._kept], check=False, stderr=subprocess.DEVNULL)

    def restore_progress(self) -> None:
        self.lose_progress()
        self._kept.rename(self.progress)

    @property
    def _kept(self) -> Path:
        return self.source.directory / "kept"


class SparkWriter(WithFolder):
    """A Spark driver with a query for each lane."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._drivers: list[Driver] = []
        self._jobs: list[Job] = []

    def start(self) -> None:
        source = self.source
        # A query in real time holds a core for each partition.
        master = f"local[{PARTITIONS * len(source.lanes)},4]" if self._in_real_time else "local[8,4]"
        settings = spark_settings(source.directory, kafka=True) | {
            "spark.master": master,
            "spark.driver.memory": "3g",
            "spark.driver.extraJavaOptions": "-Xss8m",
            "spark.sql.streaming.minBatchesToRetain": "100000",
        }
        lanes = {
            lane.name: (lane.way.name, source.urls[lane.name], source.jdbc_urls[lane.name]) for lane in source.lanes
        }
        job = Job(f"driver-{len(self._jobs)}", str(source.directory), source.servers, source.topic, lanes, settings)
        self._jobs.append(job)
        script = Path(spark_job.__file__)
        path = with_tests_on_path("testbed", "benchmarks")
        self._drivers.append(Driver(script, [job.to_json()], path, source.directory))

    @property
    def _in_real_time(self) -> bool:
        return self.source.lanes[0].way.family == "real_time"

    def kill(self) -> None:
        self._drivers[-1].sigkill()

    def kill_first(self) -> None:
        self._drivers[-2].sigkill()
        # Where both have found each other, the last one has left a lane as well.
        (self.source.directory / "revive").touch()

    def processes(self) -> list[psutil.Process]:
        return self._drivers[-1].processes()

    def finish(self, *, all_there: Callable[[], bool]) -> dict[str, str]:
        (self.source.directory / "finish").touch()
        if self._in_real_time:
            # Such a query has no end.
            wait_until(all_there, END_SECONDS)
        else:
            job = self._jobs[-1]
            lanes = set(job.lanes)
            wait_until(lambda: {one["workload"] for one in job.entries if one["event"] in _ENDS} == lanes, END_SECONDS)
        return self.failures()

    def failures(self) -> dict[str, str]:
        found = {}
        for lane in self.source.lanes:
            entries = [entry for entry in self._jobs[-1].entries if entry["workload"] == lane.name]
            why = [entry["text"] for entry in entries if entry["text"]]
            if not entries or entries[-1]["event"] not in ("done", *(["started"] if self._in_real_time else [])):
                found[lane.name] = why[-1] if why else "it did not come to its end"
        return found

    def close(self) -> None:
        for driver in self._drivers:
            driver.sigkill()


class _ByGroup(Writer):
    """One that commits offsets of consumer groups, one for each lane."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._admin = AdminClient({"bootstrap.servers": source.servers})
        self._partitions = [TopicPartition(source.topic, number) for number in range(PARTITIONS)]

    @abstractmethod
    def group_of(self, lane: Lane) -> str:
        """The name of its consumer group."""

    def restart(self, lane: Lane) -> None:
        """Start a lane again that has failed."""

    def offsets_of(self, lane: Lane) -> list[int]:
        """Its group's committed offsets."""
        asked = [ConsumerGroupTopicPartitions(self.group_of(lane), self._partitions)]
        found = self._admin.list_consumer_group_offsets(asked)[self.group_of(lane)].result()
        return [max(partition.offset, 0) for partition in found.topic_partitions]

    def finish(self, *, all_there: Callable[[], bool]) -> dict[str, str]:
        ends = self._ends()
        failed: dict[str, str] = {}
        restarts: Counter[str] = Counter()

        def is_done() -> bool:
            failed.clear()
            failed.update(self.failures())
            for lane in self.source.lanes:
                if lane.name in failed and restarts[lane.name] < _RESTARTS:
                    restarts[lane.name] += 1
                    self.restart(lane)
                    del failed[lane.name]
            return all(lane.name in failed or self.offsets_of(lane) == ends for lane in self.source.lanes)

        wait_until(lambda: is_done() or time.sleep(1), END_SECONDS)
        # Offsets and rows are not committed together.
        wait_until(all_there, 3)
        behind = [lane.name for lane in self.source.lanes if self.offsets_of(lane) != ends and lane.name not in failed]
        return {**failed, **dict.fromkeys(behind, "it did not come to its end")}

    def _ends(self) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.source.servers, "group.id": "trial"})
        ends = [consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in self._partitions]
        consumer.close()
        return ends


class ConnectWriter(_ByGroup):
    """A Kafka Connect worker with a connector for each lane."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._workers: list[KafkaConnect] = []
        self._kept: dict[str, list[int]] = {}

    def group_of(self, lane: Lane) -> str:
        return f"connect-{self._name_of(lane)}"

    def _name_of(self, lane: Lane) -> str:
        return f"{lane.name}-{self.source.topic}"

    def start(self) -> None:
        connectors = [
            {
                **orders_connector(
                    self.source.topic, PARTITIONS, self.source.jdbc_urls[lane.name], lane.name,
                    _OF_DEBEZIUM[lane.way.name] | _AS_BY_DEFAULT,
                ),
                "name": self._name_of(lane),
                "tasks.max": "1",
                # Kafka's default of 45 s, shorter, so that a successor does not wait that long.
                "consumer.override.session.timeout.ms": "6000",
            }
            for lane in self.source.lanes
        ]  # fmt: skip
        worker = KafkaConnect(self.source.servers, *connectors, worker={"offset.flush.interval.ms": "1000"})
        self._workers.append(worker)
        worker.start()

    def kill(self) -> None:
        self._workers[-1].kill()

    def kill_first(self) -> None:
        self._workers[-2].kill()

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._workers[-1].pid)]

    def failures(self) -> dict[str, str]:
        found = {}
        for lane in self.source.lanes:
            if why := self._workers[-1].failure_of(self._name_of(lane)):
                found[lane.name] = why
        return found

    def restart(self, lane: Lane) -> None:
        self._workers[-1].restart_failed(self._name_of(lane))

    def lose_progress(self) -> None:
        self._when_empty(lambda group: self._admin.delete_consumer_groups([group])[group].result())

    def keep_progress(self) -> None:
        self._kept = {self.group_of(lane): self.offsets_of(lane) for lane in self.source.lanes}

    def restore_progress(self) -> None:
        def set_back(group: str) -> None:
            offsets = [TopicPartition(self.source.topic, i, offset) for i, offset in enumerate(self._kept[group])]
            asked = [ConsumerGroupTopicPartitions(group, offsets)]
            self._admin.alter_consumer_group_offsets(asked)[group].result()

        self._when_empty(set_back)

    def _when_empty(self, do: Callable[[str], object]) -> None:
        """Do this for each group; the broker refuses it while it waits for a member that was killed."""
        for lane in self.source.lanes:
            group = self.group_of(lane)

            def is_done(group: str = group) -> bool:
                with suppress(KafkaException):
                    do(group)
                    return True
                time.sleep(0.3)
                return False

            if not wait_until(is_done, 30):
                raise TimeoutError(f"the broker did not let go of {group}")

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()


class FlinkWriter(WithFolder, _ByGroup):
    """A JVM with a Flink job for each lane."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._jvms: list[FlinkXa] = []

    def group_of(self, lane: Lane) -> str:
        return f"{lane.name}-{self.source.topic}"

    def start(self) -> None:
        source = self.source
        jobs = [
            FlinkJob(self.group_of(lane), source.jdbc_urls[lane.name], lane.name, self.progress / lane.name)
            for lane in source.lanes
        ]
        jvm = FlinkXa(source.servers, source.topic, PARTITIONS, jobs, source.url, restart="exponential-delay")
        self._jvms.append(jvm)
        jvm.start()

    def kill(self) -> None:
        self._jvms[-1].kill()

    def kill_first(self) -> None:
        self._jvms[-2].kill()

    def processes(self) -> list[psutil.Process]:
        return [psutil.Process(self._jvms[-1].pid)]

    def failures(self) -> dict[str, str]:
        try:
            self._jvms[-1].check()
        except RuntimeError as ended:
            return {lane.name: str(ended) for lane in self.source.lanes}
        return {}

    def close(self) -> None:
        for jvm in self._jvms:
            jvm.stop()
