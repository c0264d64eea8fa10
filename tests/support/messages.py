"""
The messages in a topic, and the rows that a table should have of them.

Runs in: pytest. Invariant: ``rows`` is all that was sent, however much of it was read.
"""

from __future__ import annotations

from confluent_kafka import Producer

POSITIONS = ("topic", "partition", "offset")


def send_to(kafka, topic, counts):
    """Send so many messages to each partition of a topic."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for partition, count in counts.items():
        for number in range(count):
            producer.produce(topic, value=str(number), partition=partition)
    assert producer.flush(30) == 0


class Messages:
    """A topic of two partitions; ``rows`` are what was sent, as the target should have them."""

    def __init__(self, bootstrap_servers, topic):
        self.topic = topic
        self.rows = []
        self._servers = bootstrap_servers
        self._sent = [0, 0]

    def send(self, count):
        """Send so many messages, in turn to one partition and the other."""
        producer = Producer({"bootstrap.servers": self._servers})
        for number in range(count):
            partition = number % 2
            row = (partition * 1000 + self._sent[partition], f"message {len(self.rows)}")
            producer.produce(self.topic, value=row[1], partition=partition)
            self._sent[partition] += 1
            self.rows.append(row)
        assert producer.flush(30) == 0

    def frame(self, spark, starting_offsets, *, positions=False, **options):
        """All messages from there on; with ``positions``, their topic, partition and offset too."""
        source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", self._servers).options(**options)
        source = source.option("subscribe", self.topic).option("startingOffsets", starting_offsets).load()
        columns = POSITIONS if positions else ()
        return source.selectExpr("partition * 1000 + offset AS id", "CAST(value AS STRING) AS text", *columns)
