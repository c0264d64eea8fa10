"""
Read the offsets of a consumer group, and set them.

Runs where a person exports a query's offsets. Needs the optional ``confluent-kafka``. Invariant: it joins no group, and
a group that has a living member is not moved: the broker refuses that, whenever the member came. All of it raises what
:mod:`~pgonce.offsets_store.kafka.broker` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import BrokersError, GroupInUseError, OffsetsError
from ..offsets import TopicPartition
from .broker import RIGHTS, admin_for, at_topic, consumer_for, partitions_of
from .settings import Brokers

_Answer = TypeVar("_Answer")

_TIMEOUT_SECONDS = 15
# A coordinator that has just started, or moved, says so, or does not answer at first.
_PASSING = ("COORDINATOR_LOAD_IN_PROGRESS", "COORDINATOR_NOT_AVAILABLE", "NOT_COORDINATOR", "_TIMED_OUT")
_PAUSE_SECONDS = 0.3
_LOOK_SECONDS = 1


@dataclass(frozen=True)
class GroupOffset:
    """The next offset that a group would read of a partition, and the note that was stored with it."""

    offset: int
    metadata: str | None = None


def group_offsets(
    group: str, partitions: Iterable[TopicPartition], brokers: Brokers
) -> dict[TopicPartition, GroupOffset]:
    """What a group has stored for some partitions; nothing for one that it has not read, or if it does not exist."""
    wanted = sorted(partitions)
    if not wanted:
        return {}
    with consumer_for(brokers, group) as consumer:
        import confluent_kafka

        asked_for = [confluent_kafka.TopicPartition(*place) for place in wanted]
        answer = _patiently(lambda: _committed(consumer, asked_for))
        for at in answer:
            if at.error is not None:
                raise at_topic(at.topic, at.error)
    found = {(at.topic, at.partition): GroupOffset(at.offset, at.metadata or None) for at in answer}
    # A negative number says that there is none.
    return {place: at for place, at in found.items() if at.offset >= 0}


def has_members(group: str, brokers: Brokers) -> bool:
    """Whether a consumer reads with the group now, by either of Kafka's protocols for groups."""
    with admin_for(brokers) as admin:

        def ask() -> bool:
            answer = admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_SECONDS)[group]
            return bool(answer.result().members)

        return _patiently(ask)


def log_ends(partitions: Iterable[TopicPartition], brokers: Brokers) -> dict[TopicPartition, int]:
    """The offset that each partition's next record will get; nothing for a partition that the broker does not have."""
    places = set(partitions)
    # Asked for a topic that it does not have, the client finds no leader for any partition.
    wanted = sorted(places & partitions_of({topic for topic, _ in places}, brokers))
    if not wanted:
        return {}
    with admin_for(brokers) as admin:
        import confluent_kafka.admin
        from confluent_kafka import KafkaException

        newest = confluent_kafka.admin.OffsetSpec.latest()  # type: ignore[attr-defined]
        asked_for = {confluent_kafka.TopicPartition(*place): newest for place in wanted}

        def ask() -> dict[TopicPartition, int]:
            found = {}
            for at, answer in admin.list_offsets(asked_for, request_timeout=_TIMEOUT_SECONDS).items():
                try:
                    found[at.topic, at.partition] = answer.result().offset
                except KafkaException as error:
                    if error.args[0].name() in _PASSING:
                        raise
                    if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                        raise at_topic(at.topic, error.args[0]) from None
            return found

        return _patiently(ask)


def move_group(group: str, offsets: Mapping[TopicPartition, int], metadata: str, brokers: Brokers) -> None:
    """
    Set the next offsets of a group that has no living member; a group that does not exist is created.

    :raises OffsetsError: GROUP_IN_USE, PARTITIONS_GONE.
    """
    if not offsets:
        return
    with admin_for(brokers) as admin:
        import confluent_kafka

        wanted = [confluent_kafka.TopicPartition(*place, offset, metadata) for place, offset in sorted(offsets.items())]
        request = [confluent_kafka.ConsumerGroupTopicPartitions(group, wanted)]

        def ask() -> list[Any]:
            answer = admin.alter_consumer_group_offsets(request, request_timeout=_TIMEOUT_SECONDS)[group].result()
            return _ready(list(answer.topic_partitions))

        moved = _patiently(ask)
    refused = [((at.topic, at.partition), at.error) for at in moved if at.error is not None]
    if refused:
        raise _refusal(group, refused)


def group_in_use(group: str) -> GroupInUseError:
    """The error for a group that a consumer reads with."""
    return GroupInUseError(
        "GROUP_IN_USE",
        f"The consumer group {group!r} has a member: a consumer that reads with it and stores its own offsets.",
        "Nothing was changed: the broker does not let another client move such a group.",
        "Use a group that no consumer reads with; or stop that consumer.",
    )


def _refusal(group: str, refused: list[tuple[TopicPartition, Any]]) -> OffsetsError:
    names = {error.name() for _, error in refused}
    if names & {"UNKNOWN_MEMBER_ID", "NON_EMPTY_GROUP", "REBALANCE_IN_PROGRESS", "STALE_MEMBER_EPOCH"}:
        return group_in_use(group)
    where = ", ".join(f"{topic}-{partition}" for (topic, partition), _ in refused)
    if names == {"UNKNOWN_TOPIC_OR_PART"}:
        return OffsetsError(
            "PARTITIONS_GONE",
            f"The broker has no {where}, which the query has read: the topic was deleted, or created again with fewer "
            "partitions.",
            "The group's other partitions were set.",
            "Check that these are the right brokers, and where the query reads now.",
        )
    words = "; ".join(sorted({error.str() for _, error in refused}))
    return BrokersError(
        "KAFKA_REFUSED",
        f"The broker did not set {where} of group {group!r}: {words}.",
        "The group's other partitions were set.",
        "The client needs the permission READ on the group and on the topic.",
    )


def _patiently(ask: Callable[[], _Answer]) -> _Answer:
    """An answer; asked for again where the coordinator says that it is not ready yet."""
    from confluent_kafka import KafkaException

    until = time.monotonic() + _TIMEOUT_SECONDS
    while True:
        try:
            return ask()
        except KafkaException as error:
            if error.args[0].name() not in _PASSING or time.monotonic() > until:
                raise
        time.sleep(_PAUSE_SECONDS)


def _committed(consumer: Any, partitions: list[Any]) -> list[Any]:
    """
    What the group has stored, if that can be known soon.

    AdminClient.list_consumer_group_offsets ends the whole process with a SIGSEGV if the group's coordinator has just
    moved or started (librdkafka issue 5040).
    """
    from confluent_kafka import KafkaException

    try:
        return _ready(consumer.committed(partitions, _LOOK_SECONDS))
    except KafkaException:
        # It would wait to the end for a coordinator that this user may not ask for: only poll says so.
        said = consumer.poll(0)
        if said is not None and said.error() is not None and said.error().name() in RIGHTS:
            raise KafkaException(said.error()) from None
        raise


def _ready(answer: list[Any]) -> list[Any]:
    """The partitions of an answer. :raises KafkaException: if one says that the coordinator is not ready yet."""
    from confluent_kafka import KafkaException

    for error in (at.error for at in answer if at.error is not None):
        if error.name() in _PASSING:
            raise KafkaException(error)
    return answer
