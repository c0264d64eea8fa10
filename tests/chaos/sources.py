"""
The rows of an experiment: where they come from, and how many there must be in the end.

Runs in: the laboratory, which feeds (:class:`Source`), and in the driver under test, which reads (:class:`Stream`).
Invariant: every row says which it is, ``(stream, position)``, positions of a stream begin at 0 and have no gap, and
the payload follows from both; so a table can be judged without knowing what was fed.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_broker import KafkaBroker
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from support.passed_through import Batches, passed_through

_PAUSE_SECONDS = 0.15
_ROWS = 20
_RATE = 40
PARTITIONS = 3


def payload(stream: int, position: int) -> str:
    """The payload of a position; Postgres and Spark can compute the same with ``md5``."""
    return hashlib.md5(f"{stream}:{position}".encode()).hexdigest()


class Source(ABC):
    """Rows for any number of queries; ``spec`` is what a :class:`Stream` needs in another process."""

    spec: dict[str, Any]

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._feeder = threading.Thread(target=self._feed_until_ended, daemon=True)

    def start(self) -> None:
        """Feed, from now on."""
        self._feeder.start()

    def stop(self) -> None:
        """Feed no more; what was fed stays."""
        self._ended.set()
        self._feeder.join()

    @abstractmethod
    def feed(self) -> None:
        """Add some rows."""

    @abstractmethod
    def totals(self, checkpoint: Path) -> dict[int, int]:
        """How many rows of each stream a query with this checkpoint must have brought in, after its end."""

    def _feed_until_ended(self) -> None:
        while not self._ended.wait(_PAUSE_SECONDS):
            self.feed()


class JsonFiles(Source):
    """A folder of JSON files: one stream."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._folder = directory / "inbox"
        self._folder.mkdir()
        self._files = self._rows = 0
        self.spec = {"kind": "files", "folder": str(self._folder)}
        self.feed()

    def feed(self) -> None:
        """Add a file, which appears whole."""
        rows = range(self._rows, self._rows + _ROWS)
        lines = [json.dumps({"stream": 0, "position": row, "payload": payload(0, row)}) for row in rows]
        unseen = self._folder / ".unfinished"
        unseen.write_text("\n".join(lines))
        unseen.rename(self._folder / f"{self._files:05}.json")
        self._files += 1
        self._rows += _ROWS

    def totals(self, checkpoint: Path) -> dict[int, int]:
        """All that was written."""
        return {0: self._rows}


class RateMicroBatch(Source):
    """Spark's own generator: one stream, so many rows a batch, for ever."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.spec = {"kind": "rate"}

    def feed(self) -> None:
        """It feeds itself."""

    def totals(self, checkpoint: Path) -> dict[int, int]:
        """The end of the last batch that Spark holds to be done, as its checkpoint has it."""
        last = newest(checkpoint, "commits")
        return {0: json.loads((checkpoint / "offsets" / str(last)).read_text().splitlines()[2])["offset"]}


class KafkaTopic(Source):
    """A topic with several partitions on a real broker: a stream for each partition."""

    def __init__(self, directory: Path, broker: KafkaBroker) -> None:
        super().__init__()
        self._servers = broker.bootstrap_servers
        self._topic = f"chaos-{time.time_ns()}"
        admin = AdminClient({"bootstrap.servers": self._servers})
        admin.create_topics([NewTopic(self._topic, PARTITIONS, 1)], operation_timeout=20)[self._topic].result(30)
        # Idempotent: a broker that is killed must not make the producer double a row, whose offset is its position.
        self._producer = Producer(
            {"bootstrap.servers": self._servers, "enable.idempotence": True, "log_level": 0, "linger.ms": 5}
        )
        self._rows = 0
        self.spec = {"kind": "kafka", "servers": self._servers, "topic": self._topic}
        self.feed()

    def feed(self) -> None:
        """Add some rows to each partition, and wait until the broker has them."""
        for row in range(self._rows, self._rows + _ROWS // 2):
            for partition in range(PARTITIONS):
                self._producer.produce(self._topic, payload(partition, row).encode(), partition=partition)
        self._rows += _ROWS // 2
        self._producer.flush()

    def totals(self, checkpoint: Path) -> dict[int, int]:
        """What the topic holds, read back: a row in it that is not as it should be is the topic's own fault."""
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "chaos", "log_level": 0})
        try:
            ends = {number: consumer.get_watermark_offsets(TopicPartition(self._topic, number), 10)[1]
                    for number in range(PARTITIONS)}  # fmt: skip
            consumer.assign([TopicPartition(self._topic, number, 0) for number in ends])
            read = 0
            while read < sum(ends.values()):
                for message in consumer.consume(1000, 10):
                    if message.error():
                        raise KafkaException(message.error())
                    expected = payload(message.partition(), message.offset())
                    assert message.value().decode() == expected, "the topic itself is not as it was fed"
                    read += 1
            return ends
        finally:
            consumer.close()


KAFKA_COLUMNS = ("partition AS stream", "offset AS position", "CAST(value AS string) AS payload")


@dataclass(frozen=True)
class Stream:
    """
    A source as one query reads it.

    :param trigger: of a query in micro-batches.
    :param tasks: what its tasks do with the rows besides, in micro-batches.
    """

    session: SparkSession
    spec: Mapping[str, Any]
    trigger: Mapping[str, Any]
    files_a_batch: int = 20
    tasks: Callable[[Batches], Batches] | None = None

    def rows(self) -> DataFrame:
        """A frame of (stream int, position bigint, payload string)."""
        return passed_through(self.tasks, self._read()) if self.tasks else self._read()

    def records(self) -> DataFrame:
        """Spark's Kafka source as it comes, which the source must be."""
        read = self.session.readStream.format("kafka").options(**self.kafka_options()).load()
        return passed_through(self.tasks, read) if self.tasks else read

    def kafka_options(self) -> dict[str, str]:
        """For a reader of the topic from its beginning, which the source must be."""
        servers, topic = self.spec["servers"], self.spec["topic"]
        return {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}

    def _read(self) -> DataFrame:
        read = self.session.readStream
        match self.spec["kind"]:
            case "files":
                schema = "stream int, position bigint, payload string"
                return read.schema(schema).option("maxFilesPerTrigger", self.files_a_batch).json(self.spec["folder"])
            case "rate":
                rate = read.format("rate-micro-batch").option("rowsPerBatch", _RATE).option("numPartitions", 2).load()
                number = f.concat_ws(":", f.lit(0), "value")
                columns = (f.lit(0).alias("stream"), rate.value.alias("position"), f.md5(number).alias("payload"))
                return rate.select(*columns)
            case _:
                return read.format("kafka").options(**self.kafka_options()).load().selectExpr(*KAFKA_COLUMNS)


def newest(checkpoint: Path, log: str) -> int:
    """The greatest number in ``offsets`` or ``commits`` of a checkpoint; -1 where there is none."""
    with suppress(FileNotFoundError):
        return max((int(file.name) for file in (checkpoint / log).iterdir() if file.name.isdecimal()), default=-1)
    return -1
