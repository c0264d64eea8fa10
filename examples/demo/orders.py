"""
Send the orders.

Runs in the demo's own process. Invariant: what is counted as sent is in the source, once: a file appears whole, and a
message is counted when the broker has acknowledged it.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Protocol

_EVERY_SECONDS = 0.4
_AT_ONCE = (50, 250)
_TOPIC = "orders"


class Source(Protocol):
    """A place that takes orders, and that the job reads."""

    @property
    def name(self) -> str:
        """What it is called on the screen."""

    @property
    def job_arguments(self) -> Sequence[str]:
        """How the job is told to read it."""

    def send(self, orders: Sequence[tuple[str, str]]) -> None:
        """Put orders (customer and JSON) into the source; they are there when this returns."""


class Files:
    """JSON files in a directory."""

    name = "JSON files"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files = 0
        directory.mkdir()
        self.job_arguments = ("--files", str(directory))

    def send(self, orders: Sequence[tuple[str, str]]) -> None:
        """Write one file, under a name that Spark passes over until the file is whole."""
        self._files += 1
        path = self._directory / f"orders-{self._files:05d}.json"
        hidden = path.with_name(f".{path.name}")
        hidden.write_text("".join(f"{order}\n" for _, order in orders))
        hidden.rename(path)


class Topic:
    """A Kafka topic; a customer's orders stay in order in one of its partitions."""

    def __init__(self, bootstrap_servers: str, partitions: int = 4) -> None:
        from confluent_kafka import Producer
        from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

        admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
        admin.create_topics([NewTopic(_TOPIC, partitions, 1)])[_TOPIC].result(timeout=30)
        # Idempotent, so that the producer's own retries double nothing.
        # Silent, because what it would log is passed on by the callback or is the broker's end.
        quiet = {"bootstrap.servers": bootstrap_servers, "log_level": 0}
        self._producer = Producer({**quiet, "enable.idempotence": True, "linger.ms": 2})
        self.name = f"Kafka messages in {partitions} partitions"
        self.job_arguments = ("--kafka", bootstrap_servers, _TOPIC)

    def send(self, orders: Sequence[tuple[str, str]]) -> None:
        """Produce, and wait for the acknowledgements."""
        for customer, order in orders:
            self._producer.produce(_TOPIC, order, key=customer, on_delivery=_raise_error)
        if left := self._producer.flush(30):
            raise RuntimeError(f"Kafka did not acknowledge {left} orders within 30 s.")


def _raise_error(error: object, _: object) -> None:
    if error is not None:
        raise RuntimeError(f"Kafka refused an order: {error}")


class Customers:
    """They keep ordering, with ids from 1 on: :meth:`order_when_due` is called over and over."""

    def __init__(
        self, source: Source, *, every_seconds: float = _EVERY_SECONDS, at_once: tuple[int, int] = _AT_ONCE
    ) -> None:
        self._source = source
        self._every_seconds = every_seconds
        self._at_once = at_once
        self._due = 0.0
        self.sent: list[tuple[int, int]] = []
        """The id and the cents of each order."""

    def order_when_due(self) -> None:
        """Send some orders, unless the last ones were sent just now."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every_seconds
            self.order()

    def order(self) -> None:
        """Send some orders, all at once."""
        first = len(self.sent) + 1
        numbers = range(first, first + random.randint(*self._at_once))
        orders = [(number, random.randint(1, 999_999)) for number in numbers]
        self._source.send(list(_as_json(orders)))
        self.sent += orders


def _as_json(orders: Sequence[tuple[int, int]]) -> Iterator[tuple[str, str]]:
    placed_at = datetime.now(timezone.utc).isoformat()
    for order_id, cents in orders:
        customer = f"customer-{random.randint(1, 500)}"
        order = {"order_id": order_id, "customer": customer, "amount": cents / 100, "placed_at": placed_at}
        yield customer, json.dumps(order)
