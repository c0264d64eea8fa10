"""
Say where each partition is read from when a run begins.

Runs on the driver, which asks the ledger and the brokers. Invariant: every partition that exists is named, from its
stored position where it has one; and records that Kafka has deleted before they were read are never passed over in
silence.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace

from pgonce.offsets_store.errors import (
    NOTHING,
    NoLedgerError,
    NotFoundError,
    OffsetsError,
    OldLedgerError,
    UnreachableBrokersError,
    bad_option,
)
from pgonce.offsets_store.kafka.partitions import ends_of
from pgonce.offsets_store.kafka.settings import PREFIX, Brokers, brokers, of_the_login
from pgonce.offsets_store.ledger.session import reading
from pgonce.offsets_store.offsets import Offsets, TopicPartition
from pgonce.offsets_store.status.ends import EARLIEST, kafka_end
from pgonce.offsets_store.status.read_stored import writers_of
from pgonce.offsets_store.verdict.refused_batch import OTHER_TOPICS

from .positions import SOURCE

_BROKERS_SECONDS = 10
_LATEST = -1
_UNCOMMITTED = "read_uncommitted"
_WORDS = {"earliest": EARLIEST, "latest": _LATEST}


class KafkaSource:
    """
    What a user has given for Spark's Kafka source, in any case.

    :raises ConfigurationError: BAD_OPTION, UNKNOWN_OPTION, as far as it can be told before a broker is asked.
    """

    def __init__(self, options: Mapping[str, object]) -> None:
        self.options = {name: str(value) for name, value in options.items()}
        plain = {name.lower(): value for name, value in self.options.items()}
        servers = plain.get(f"{PREFIX}bootstrap.servers")
        self.topics = sorted({name.strip() for name in plain.get("subscribe", "").split(",") if name.strip()})
        if not servers or not self.topics:
            raise bad_option(
                "BAD_OPTION",
                "The options of Kafka's source need kafka.bootstrap.servers, and the topics in subscribe.",
                'Write kafka={"kafka.bootstrap.servers": "host:9092", "subscribe": "orders"}.',
            )
        for refused in ("subscribepattern", "startingtimestamp", "startingoffsetsbytimestamp", "endingoffsets"):
            if refused in plain:
                raise bad_option(
                    "BAD_OPTION",
                    f"{refused} cannot be used here: the positions in the ledger say where the query begins.",
                    "Name the topics in subscribe, and where a new query begins in startingOffsets.",
                )
        login = {n: v for n, v in plain.items() if n.startswith(PREFIX) and n != f"{PREFIX}bootstrap.servers"}
        self.brokers: Brokers = brokers(servers, of_the_login(login)) or Brokers(servers)
        self._isolation = plain.get(f"{PREFIX}isolation.level", _UNCOMMITTED)
        self._starting = plain.get("startingoffsets", "latest")
        self._may_lose = plain.get("failondataloss", "true").lower() == "false"

    def start(self, known: Mapping[TopicPartition, int] | None) -> Offsets:
        """
        The next offset of each partition: what is ``known``, else where the user wants a new query to begin.

        :param known: None for a query that is new. For a known query, a partition that was added to a topic begins at
            its first record, and a topic that was added to ``subscribe`` at what Kafka still has of it.
        :raises OffsetsError: RECORDS_GONE, RECREATED, TOPIC_MISSING; what asking brokers raises.
        """
        found: dict[str, dict[str, int]] = {}
        topics = {topic for topic, _ in known or ()}
        for (topic, partition), (earliest, end) in sorted(self._ends().items()):
            first = end if earliest is None else earliest
            stored = None if known is None else known.get((topic, partition), 0 if topic in topics else first)
            at = self._first_of(topic, partition, first, end) if stored is None else stored
            found.setdefault(topic, {})[str(partition)] = self._checked(topic, partition, at, first, end)
        if missing := sorted(set(self.topics) - found.keys()):
            raise OffsetsError(
                "TOPIC_MISSING",
                f"The brokers {self.brokers.servers} have no topic {missing[0]!r}.",
                NOTHING,
                "Create it, or correct its name in subscribe.",
            )
        return {SOURCE: found}

    def _ends(self, isolation: str | None = None) -> dict[TopicPartition, tuple[int | None, int]]:
        # Spark's source reads transactions that are open, unless it is told not to; librdkafka would end before them.
        settings = *self.brokers.settings, ("isolation.level", isolation or self._isolation)
        brokers_asked = replace(self.brokers, settings=settings)
        until = time.monotonic() + _BROKERS_SECONDS
        while True:
            try:
                return ends_of(self.topics, brokers_asked)
            except UnreachableBrokersError:
                # A partition that was just made, or whose broker has restarted, has no leader for a moment.
                if time.monotonic() > until:
                    raise
                time.sleep(0.5)

    def known(self, start: Offsets, stored: Mapping[TopicPartition, int] | None) -> Offsets:
        """What is stored of each partition in ``start``; of a query that is new, all that is before its start."""
        if stored is None:
            return start
        topics: dict[str, dict[str, int]] = start[SOURCE]
        return {
            SOURCE: {
                topic: {partition: stored.get((topic, int(partition)), 0) for partition in partitions}
                for topic, partitions in topics.items()
            }
        }

    def options_from(self, start: Offsets) -> dict[str, str]:
        """What Spark's source is given: the user's options, and where each partition begins."""
        mine = {name: value for name, value in self.options.items() if name.lower() != "startingoffsets"}
        return {**mine, "startingOffsets": json.dumps(start[SOURCE])}

    def _first_of(self, topic: str, partition: int, earliest: int, end: int) -> int:
        word = _WORDS.get(self._starting.lower())
        if word is None:
            try:
                word = int(json.loads(self._starting)[topic][str(partition)])
            except (ValueError, KeyError, TypeError):
                raise bad_option(
                    "BAD_OPTION",
                    f"startingOffsets does not name partition {partition} of topic {topic}.",
                    'Write earliest, latest, or JSON that names all partitions: {"orders": {"0": 23, "1": -2}}.',
                ) from None
        return {EARLIEST: earliest, _LATEST: end}.get(word, word)

    def _checked(self, topic: str, partition: int, at: int, earliest: int, end: int) -> int:
        is_committed_only = self._isolation == "read_committed"
        if at > end and is_committed_only and at <= self._ends(_UNCOMMITTED)[topic, partition][1]:
            raise OffsetsError(
                "TRANSACTION_OPEN",
                f"Partition {partition} of topic {topic} is to be read from {at}, and a transaction has been open "
                f"there since {end}: with read_committed, nothing after that can be read.",
                NOTHING,
                "Start the query again when its producer has ended the transaction, or leave kafka.isolation.level as "
                "it was.",
            )
        if at > end:
            raise OffsetsError(
                "RECREATED",
                f"Partition {partition} of topic {topic} ends at {end}, but is to be read from {at}: the topic was "
                "deleted and created again, or records were lost.",
                NOTHING,
                "If the new topic's records are others, start with a new checkpoint location and independent, and "
                f"retire the query that read the old topic: pgonce retire. {OTHER_TOPICS}",
            )
        if at < earliest and not self._may_lose:
            raise OffsetsError(
                "RECORDS_GONE",
                f"Kafka has deleted records {at} to {earliest - 1} of partition {partition} of topic {topic}, and no "
                "row of them is stored. They were not read, or they were filtered out, or they are Kafka's marks of "
                "transactions: nothing tells which.",
                NOTHING,
                'To go on without them, start the query once with "failOnDataLoss": "false" in kafka, and then without '
                "it again. Give the topic a longer retention.",
            )
        return max(at, earliest)


def stored_positions(
    url: str, query_id: str, sink_name: str, replaces: str | None
) -> tuple[int | None, dict[TopicPartition, int] | None]:
    """
    The query's last batch, and the next record of each partition, also where another query is replaced.

    Both are None for a query that the ledger does not know, or if there is no ledger yet. It proves nothing: the run's
    first batch reads it again, under the lock.

    :raises OffsetsError: if the query did not read one Kafka source before.
    """
    try:
        with reading(url) as connection:
            try:
                known = writers_of(connection, query_id, sink_name)[0]
            except NotFoundError:
                return None, kafka_end(writers_of(connection, replaces, sink_name)[0]) if replaces else None
    except (NoLedgerError, OldLedgerError):
        return None, None
    return known.batch_id, kafka_end(known)
