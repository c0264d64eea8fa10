"""
Continuous processing, in which Spark drops every row on its way to a Python sink: refused, with nothing lost.

That a continuous start is refused before an offset is written, by `recover_and_start` too, is shown by
test_which_guarantee.py.
"""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
from support.audit import wrong_ledger, wrong_rows
from support.fixtures.driver import wait_until
from support.messages import Messages
from support.patience import PATIENCE_SECONDS
from support.query_runs import assert_refused, finish
from support.ways_in import WAYS, DataSource, Sink

from pgonce.recovery.recover import recover_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

INLINE = next(way for way in WAYS if isinstance(way, DataSource))


@pytest.fixture
def messages(kafka, topic, url):
    """A topic of two partitions with eleven messages, and a table for them."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE messages (id bigint, text text)")
    sent = Messages(kafka.bootstrap_servers, topic(partitions=2))
    sent.send(11)
    return sent


def files(checkpoint):
    """The entries and commits of a checkpoint, with their texts."""
    return {
        f"{folder}/{path.name}": path.read_text()
        for folder in ("offsets", "commits")
        for path in Path(checkpoint, folder).glob("[0-9]*")
    }


def test_a_checkpoint_that_ran_continuous_is_adopted(spark, messages, url, observer, checkpoint):
    """After another sink's continuous query, a recovery and adoptCheckpoint let micro-batches go on where it ended."""
    other = messages.frame(spark, "earliest").writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = other.trigger(continuous="200 milliseconds").start()
    # In one epoch: while the reader of one partition is at its end, the other's may not have begun.
    assert wait_until(
        lambda: any('"0":6' in text and '"1":5' in text for text in files(checkpoint).values()), PATIENCE_SECONDS
    )
    query.stop()
    seen = len(messages.rows)
    messages.send(7)
    sink = Sink(url, "messages", checkpoint)
    recovery = recover_checkpoint(checkpoint, url, quiet_seconds=0)
    newest = recovery.stands_at
    is_done = f"commits/{newest}" in files(checkpoint)
    assert recovery.is_done
    assert_refused(INLINE.append(messages.frame(spark, "earliest"), sink), "UNKNOWN")
    first = newest + 1
    adopting = Sink(url, "messages", checkpoint, {"adopt_checkpoint": first})
    finish(INLINE.append(messages.frame(spark, "earliest"), adopting))
    assert wrong_rows(observer, "messages", messages.rows[seen:]) == [], (first, is_done)
    messages.send(3)
    finish(INLINE.append(messages.frame(spark, "earliest"), sink))
    assert wrong_rows(observer, "messages", messages.rows[seen:]) == []


def test_what_cannot_be_told_at_the_start_stores_nothing(spark, messages, url, observer, checkpoint):
    """Within the interval after a micro-batch, a continuous start is told in the log only; nothing is lost."""
    sink = Sink(url, "messages", checkpoint)
    finish(INLINE.append(messages.frame(spark, "earliest"), sink))
    stored = list(messages.rows)
    messages.send(6)
    stream = messages.frame(spark, "earliest", positions=True).writeStream.format("pgonce")
    stream = stream.options(url=url, table="messages", checkpointLocation=checkpoint)
    stream = stream.options(positionColumns="topic,partition,offset", writePositions="false")
    stream = stream.options(asyncProgressTrackingEnabled="true", asyncProgressTrackingCheckpointIntervalMs="60000")
    stream = stream.option("_asyncProgressTrackingOverrideSinkSupportCheck", "true")
    query = stream.trigger(continuous="1 second").start()
    try:
        assert wait_until(lambda: "offsets/3" in files(checkpoint), PATIENCE_SECONDS)
        assert query.isActive
    finally:
        query.stop()
    assert [name for name in files(checkpoint) if name.startswith("commits/")] == ["commits/0"]
    assert wrong_rows(observer, "messages", stored) == []
    assert recover_checkpoint(checkpoint, url, quiet_seconds=0).is_done
    finish(INLINE.append(messages.frame(spark, "earliest"), sink))
    assert wrong_rows(observer, "messages", messages.rows) == []
    assert wrong_ledger(observer, checkpoint) == []
