"""
Continuous processing, in which Spark drops every row on its way to a Python sink: refused, with nothing lost.

That a continuous start is refused before an offset is written, by `recover_and_start` too, is shown by
test_which_guarantee.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.audit import wrong_rows
from support.fixtures.driver import wait_until
from support.messages import Messages
from support.patience import PATIENCE_SECONDS
from support.query_runs import finish
from support.ways_in import WAYS, DataSource, Sink

from pgonce.offsets_store.errors import RecoveryError
from pgonce.recovery.recover import recover_checkpoint

pytestmark = [pytest.mark.spark, pytest.mark.kafka]

INLINE = next(way for way in WAYS if isinstance(way, DataSource))


@pytest.fixture
def messages(kafka, topic, url, admin):
    """A topic of two partitions with eleven messages, and a table for them."""
    admin.execute("CREATE TABLE messages (id bigint, text text)")
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


def test_a_query_that_ran_continuously_goes_on_in_micro_batches(spark, messages, url, observer, tmp_path):
    """After another sink's continuous query, a new checkpoint begins at the newest entry that has a commit."""
    old = str(tmp_path / "old")
    other = messages.frame(spark, "earliest").writeStream.format("noop").option("checkpointLocation", old)
    query = other.trigger(continuous="200 milliseconds").start()
    assert wait_until(lambda: any(name.startswith("commits/") for name in files(old)), PATIENCE_SECONDS)
    query.stop()
    with pytest.raises(RecoveryError, match="RECOVERY_UNPROVEN.* ran continuously"):
        recover_checkpoint(old, url, quiet_seconds=0)
    messages.send(7)
    there = files(old)
    newest = max(int(name.removeprefix("commits/")) for name in there if name.startswith("commits/"))
    ended = there[f"offsets/{newest}"].splitlines()[-1]
    sink = Sink(url, "messages", str(tmp_path / "new"))
    finish(INLINE.append(messages.frame(spark, ended), sink))
    begun = json.loads(ended)[messages.topic]
    left = [row for row in messages.rows if row[0] % 1000 >= begun[str(row[0] // 1000)]]
    assert wrong_rows(observer, "messages", left) == []
