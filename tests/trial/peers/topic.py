"""
The topic that all ways read: a thread sends records until it is told to stop, and then says which it has sent.

Runs in: the trial. Invariant: the records of a customer go to one partition, in the order of their ids.
"""

from __future__ import annotations

import json
import threading
import time

import psycopg
from confluent_kafka import Producer
from kafka_topic import create_topic
from loads import COLUMNS

PARTITIONS = 2
_PER_SECOND = 300
_CUSTOMERS = 2_000


class Topic:
    """A topic of its own for each round; a context manager."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        self.name = f"trial-{time.time_ns()}"
        create_topic(bootstrap_servers, self.name, PARTITIONS)
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "enable.idempotence": True, "linger.ms": 5})
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._send, daemon=True)
        self.sent = 0

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and return when the broker has everything."""
        self._stopping.set()
        self._thread.join()
        self._producer.flush()

    def keep_in(self, connection: psycopg.Connection) -> None:
        """A table ``sent`` with all that was sent, for the auditor."""
        connection.execute(f"CREATE TABLE sent ({COLUMNS})".encode())
        with connection.cursor().copy("COPY sent FROM STDIN") as copy:
            for number in range(self.sent):
                copy.write_row(tuple(record(number).values()))
        connection.execute("CREATE INDEX ON sent (customer, id)")
        connection.execute("ANALYZE sent")

    def _send(self) -> None:
        began = time.monotonic()
        while not self._stopping.is_set():
            due = int((time.monotonic() - began) * _PER_SECOND)
            for number in range(self.sent, due):
                value = record(number)
                partition = value["customer"] % PARTITIONS
                self._producer.produce(self.name, json.dumps(value).encode(), partition=partition)
            self.sent = due
            self._producer.poll(0.02)


def record(number: int) -> dict[str, object]:
    """The record with this id."""
    at = f"2025-06-15T15:{number // 60 % 60:02}:{number % 60:02}Z"
    # One in two is a customer's only record, so that one that is lost shows in a table by key; others come again.
    customer = number if number % 2 else number * 7919 % _CUSTOMERS
    return {"id": number, "customer": customer, "amount": number / 100, "status": "accepted",
            "note": f"order {number} of the day", "at": at}  # fmt: skip
