"""
A copy that follows the change feed of another table ends as that table, whatever comes again.

Covers: sink.changes.reader, sink.changes.change_types, sink.writing.by_key.apply.
"""

from __future__ import annotations

import json
import os
from decimal import Decimal
from itertools import groupby

import pytest
from change_feed import ChangeFeed
from change_feed_topic import send
from support.audit import replays, wrong_ledger
from support.followed_feed import (
    DEBEZIUM,
    FIELDS,
    WAYS,
    checkpoint_of,
    create_copies,
    envelopes,
    followed,
    wrong_copy,
    wrong_counts,
)
from support.query_runs import finish, rewind

pytestmark = pytest.mark.spark

RECORDS_OF_A_BATCH = 30
FEEDS = {
    # Stretches of older events come again within a batch and across batches; many notes were not read by the source.
    "hard": ChangeFeed(2, keys=40, events=500, replays=4, large_notes=0.4),
    "few_keys": ChangeFeed(3, keys=6, events=400, replays=6, replayed=30, large_notes=0.5, again=0.7),
    "full_identity": ChangeFeed(4, keys=40, events=400, replays=3, identity="full", large_notes=0.4),
    "deletes": ChangeFeed(5, keys=60, events=400, replays=5, deletes=0.4, key_changes=0.15),
}


def what_is_wrong(observer, way, directory, feed, changes):
    """Everything that the copy, its ledger and its checkpoint do not agree about."""
    return [
        *wrong_copy(observer, way, feed),
        *wrong_counts(observer, way, directory, changes),
        *wrong_ledger(observer, checkpoint_of(way, directory)),
    ]


class Followed:
    """Debezium's records in a topic, sent in pieces, and the queries that follow them."""

    def __init__(self, spark, kafka, topic, url, directory, feed):
        self.feed, self.directory = feed, directory
        self.records = list(feed.records())
        self.changes = sum(record.value is not None for record in self.records)
        self._spark, self._servers, self.topic, self._url = spark, kafka.bootstrap_servers, topic, url
        self._sent = 0

    def send(self, share):
        """Send records until so large a share of all of them is sent."""
        upto = int(len(self.records) * share)
        send(self.records[self._sent : upto], self._servers, self.topic)
        self._sent = upto

    def run(self, way):
        """Follow what there is to its end."""
        changes = envelopes(self._spark, self._servers, self.topic, RECORDS_OF_A_BATCH)
        finish(followed(way, changes, self._url, self.directory, **DEBEZIUM))

    def rewind(self, way):
        """Let Spark believe that the newest batch was not committed."""
        return rewind(checkpoint_of(way, self.directory))

    def wrong(self, observer, way):
        """What is wrong now that all is applied."""
        return what_is_wrong(observer, way, self.directory, self.feed, self.changes)


@pytest.fixture
def followed_feed(spark, kafka, topic, url, tmp_path):
    """``followed_feed(feed, way)``: a topic that is empty yet, and a table for the way."""

    def make(feed, way):
        create_copies(url, "lsn", (way,))
        return Followed(spark, kafka, topic(partitions=2), url, tmp_path, feed)

    return make


@pytest.mark.kafka
@pytest.mark.slow
@pytest.mark.parametrize(
    ("feed", "way"),
    [
        *(("hard", way) for way in WAYS),
        ("few_keys", "function"),
        ("full_identity", "writer"),
        ("deletes", "staged"),
    ],
)
def test_debezium(followed_feed, observer, way, feed):
    """Batches that are run again and events that come again, late and after deletes, leave the source's rows."""
    one = followed_feed(FEEDS[feed], way)
    again = []
    for share in (0.3, 0.7, 1):
        one.send(share)
        one.run(way)
        again.append(one.rewind(way))
    one.run(way)
    assert one.wrong(observer, way) == []
    assert replays(observer, checkpoint_of(way, one.directory)) == again
    if feed == "hard":
        reached = "SELECT DISTINCT key FROM pgonce.batches, jsonb_each_text(counts) WHERE value <> '0'"
        counts = observer.execute(reached).fetchall()
        # The feed has reached all of these cases.
        assert {stage for (stage,) in counts} >= {"written", "deleted", "superseded", "passed_over"}


class Versions:
    """The change feed of a Delta table or of Spark as files of JSON, each with some whole versions."""

    SCHEMA = f"{FIELDS.replace(':', '')}, _change_type STRING, _commit_version BIGINT, _commit_timestamp TIMESTAMP"

    def __init__(self, spark, url, directory, feed, *, updates):
        self.feed, self.directory, self.changes = feed, directory, 0
        self._spark, self._url, self._files = spark, url, 0
        rows = groupby(feed.change_rows(updates=updates), key=lambda row: row["_commit_version"])
        self.versions = [list(of_version) for _, of_version in rows]
        (directory / "changes").mkdir()

    def add(self, versions):
        """Add a file, which the stream reads after the others."""
        rows = [row for version in versions for row in version]
        # The image before an update is no change.
        self.changes += sum(row["_change_type"] != "update_preimage" for row in rows)
        path = self.directory / "changes" / f"{self._files}.json"
        path.write_text("\n".join(json.dumps(row, default=_as_text) for row in rows))
        # Spark reads files in the order of their times.
        os.utime(path, (1_700_000_000 + self._files,) * 2)
        self._files += 1

    def run(self, way, **settings):
        """Apply all files to the end, one in a batch."""
        stream = self._spark.readStream.schema(self.SCHEMA).option("maxFilesPerTrigger", "1")
        changes = stream.json(str(self.directory / "changes"))
        settings = {"change_feed": "spark", "order_by": "_commit_version", **settings}
        finish(followed(way, changes, self._url, self.directory, **settings))

    def wrong(self, observer, way):
        """What is wrong now that all is applied."""
        return what_is_wrong(observer, way, self.directory, self.feed, self.changes)


def _as_text(value):
    return str(value) if isinstance(value, Decimal) else value.isoformat()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "updates", "only_newer"),
    [(way, number % 2 == 0, number % 3 == 0) for number, way in enumerate((*WAYS, "staged"))],
)
def test_versions(spark, url, observer, tmp_path, way, updates, only_newer):
    """Both forms of an update, many versions in a batch, and a batch that is run again come to the source's rows."""
    create_copies(url, "_commit_version", (way,))
    one = Versions(spark, url, tmp_path, FEEDS["few_keys"], updates=updates)
    files = [one.versions[start : start + 20] for start in range(0, len(one.versions), 20)]
    for part in (files[: len(files) // 2], files[len(files) // 2 :]):
        for versions in part:
            one.add(versions)
        one.run(way, only_newer=only_newer)
        again = rewind(checkpoint_of(way, one.directory))
    one.run(way, only_newer=only_newer)
    assert one.wrong(observer, way) == []
    assert again in replays(observer, checkpoint_of(way, one.directory))
