"""
Send a change feed into a topic of Kafka.

Runs in: any process. Invariant: all records of one key are in one partition, in the order in which they were sent.
"""

from __future__ import annotations

from collections.abc import Iterable

from change_feed_debezium import Record
from confluent_kafka import KafkaError, Message, Producer


def send(records: Iterable[Record], bootstrap_servers: str, topic: str) -> int:
    """
    Send all records to a topic that is there, and return how many they were once the broker has them all.

    :raises RuntimeError: if the broker did not take one.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            # Otherwise a record that is sent again may come behind a later one of its key.
            "enable.idempotence": True,
            # The one by which Kafka Connect, a Java program, chooses a key's partition.
            "partitioner": "murmur2_random",
            "linger.ms": 50,
        }
    )
    refused: list[KafkaError] = []

    def delivered(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            refused.append(error)

    sent = 0
    for record in records:
        _produce(producer, topic, record, delivered)
        sent += 1
    left = producer.flush(60)
    if refused or left:
        raise RuntimeError(f"{topic} lacks {len(refused) + left} of {sent} records: {refused[:1] or 'no answer'}")
    return sent


def _produce(producer: Producer, topic: str, record: Record, delivered: object) -> None:
    while True:
        try:
            producer.produce(topic, record.value, record.key, headers=list(record.headers), on_delivery=delivered)
        except BufferError:
            # The queue is full until the broker has answered.
            producer.poll(0.1)
        else:
            producer.poll(0)
            return
