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
from support.audit import recorded, replays, wrong_ledger
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

# Stretches of older events come again within a batch and across batches, and many notes were not read by the source.
HARD = ChangeFeed(2, keys=40, events=500, replays=4, large_notes=0.4)
RECORDS_OF_A_BATCH = 30
FEEDS = {
    "hard": HARD,
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

    def run(self, way, records=RECORDS_OF_A_BATCH):
        """Follow what there is to its end."""
        changes = envelopes(self._spark, self._servers, self.topic, records)
        finish(followed(way, changes, self._url, self.directory, **DEBEZIUM))

    def rewind(self, way):
        """Let Spark believe that the newest batch was not committed."""
        return rewind(checkpoint_of(way, self.directory))

    def wrong(self, observer, way):
        """What is wrong now that all is applied."""
        return what_is_wrong(observer, way, self.directory, self.feed, self.changes)


@pytest.fixture
def followed_feed(spark, kafka, topic, url, tmp_path):
    """``followed_feed(feed, ways, partitions=2)``: a topic that is empty yet, and a table for each way."""

    def make(feed, *ways, partitions=2):
        create_copies(url, "lsn", ways)
        return Followed(spark, kafka, topic(partitions=partitions), url, tmp_path, feed)

    return make


def run_with_rewinds(one, observer, way, **batches):
    """Follow a feed in three runs, each of which begins with a batch that is in the table already."""
    again = []
    for share in (0.3, 0.7, 1):
        one.send(share)
        one.run(way, **batches)
        again.append(one.rewind(way))
    one.run(way, **batches)
    assert one.wrong(observer, way) == []
    assert replays(observer, checkpoint_of(way, one.directory)) == again


@pytest.mark.kafka
def test_debezium_from_kafka(followed_feed, observer):
    """Batches that are run again and events that are sent again, late and after deletes, leave the source's rows."""
    one = followed_feed(HARD, "staged")
    run_with_rewinds(one, observer, "staged")
    assert len(recorded(observer, checkpoint_of("staged", one.directory))) > 15
    counts = observer.execute(
        "SELECT key, sum(value::int) FROM pgonce.batches, jsonb_each_text(counts) GROUP BY 1"
    ).fetchall()
    # The feed has reached all of these cases.
    assert {stage for stage, count in counts if count} >= {"written", "deleted", "superseded", "passed_over"}


@pytest.mark.kafka
@pytest.mark.slow
class TestDebezium:
    @pytest.mark.parametrize(
        ("feed", "way"),
        [
            *(("hard", way) for way in WAYS),
            ("few_keys", "function"),
            ("full_identity", "writer"),
            ("deletes", "staged"),
        ],
    )
    def test_every_way(self, followed_feed, observer, way, feed):
        """The sink, however its rows travel, the writer and a function all come to the source's rows."""
        run_with_rewinds(followed_feed(FEEDS[feed], way), observer, way)

    @pytest.mark.parametrize("records", [1_000, 150, 9])
    def test_however_the_stream_is_cut(self, followed_feed, observer, records):
        """What is in the table does not depend on which changes come in one batch."""
        one = followed_feed(HARD, "inline", "function")
        one.send(1)
        for way in ("inline", "function"):
            one.run(way, records=records)
            assert one.wrong(observer, way) == []

    def test_two_queries_write_one_table(self, followed_feed, observer, spark, kafka, topic, url, tmp_path):
        """Another query that applies the whole feed to the same table a second time changes nothing."""
        one = followed_feed(HARD, "staged")
        one.send(1)
        one.run("staged")
        again = Followed(spark, kafka, topic(partitions=1), url, tmp_path / "again", HARD)
        again.send(1)
        again.run("staged", records=70)
        assert one.wrong(observer, "staged") == again.wrong(observer, "staged") == []


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


def run_versions(one, observer, way, size, **settings):
    """Apply all versions, so many in a file, in two runs, the second of which begins with a batch that is there."""
    files = [one.versions[start : start + size] for start in range(0, len(one.versions), size)]
    for part in (files[: len(files) // 2], files[len(files) // 2 :]):
        for versions in part:
            one.add(versions)
        one.run(way, **settings)
        again = rewind(checkpoint_of(way, one.directory))
    one.run(way, **settings)
    assert one.wrong(observer, way) == []
    assert again in replays(observer, checkpoint_of(way, one.directory))


def test_updates_as_delete_and_insert(spark, url, observer, tmp_path):
    """A delete and an insert of one key and one version, in any order, leave the row that was inserted."""
    create_copies(url, "_commit_version", ("inline",))
    run_versions(Versions(spark, url, tmp_path, HARD, updates=False), observer, "inline", size=30)


@pytest.mark.slow
class TestVersions:
    @pytest.mark.parametrize(
        ("way", "updates", "only_newer"),
        [(way, number % 2 == 0, number % 3 == 0) for number, way in enumerate((*WAYS, "staged"))],
    )
    def test_every_way(self, spark, url, observer, tmp_path, way, updates, only_newer):
        """Both forms of an update, many versions in a batch, come to the source's rows by each way in."""
        create_copies(url, "_commit_version", (way,))
        one = Versions(spark, url, tmp_path, FEEDS["few_keys"], updates=updates)
        run_versions(one, observer, way, size=20, only_newer=only_newer)

    @pytest.mark.parametrize(("updates", "feed"), [(True, "delta"), (False, "spark")])
    def test_one_version_in_a_batch(self, spark, url, observer, tmp_path, updates, feed):
        """The smallest batches that a table's feed has."""
        create_copies(url, "_commit_version", ("inline",))
        one = Versions(spark, url, tmp_path, ChangeFeed(7, keys=10, events=60), updates=updates)
        run_versions(one, observer, "inline", size=1, change_feed=feed)

    @pytest.mark.parametrize(("way", "updates"), [("staged", True), ("function", False)])
    def test_versions_that_are_read_again(self, spark, url, observer, tmp_path, way, updates):
        """With `onlyNewer`, older versions that come again are passed over, and the newest one changes nothing."""
        create_copies(url, "_commit_version", (way,))
        one = Versions(spark, url, tmp_path, HARD, updates=updates)
        size = len(one.versions) // 8
        for start in range(0, len(one.versions), size):
            one.add(one.versions[start : start + size])
            one.add(one.versions[max(0, start - size) : start])
        one.add(one.versions[-1:])
        one.run(way, only_newer=True)
        assert one.wrong(observer, way) == []
