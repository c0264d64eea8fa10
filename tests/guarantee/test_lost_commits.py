"""
Promote an asynchronous standby that lacks the last commits, under a query of every way of writing.

Runs in: pytest, without Spark: a checkpoint is played, tasks encode real rows, and their parcels are committed as the
Data Source commits them. All queries share one failover, because it takes seconds: each has published three batches
that the standby has, and then, cut off from it, two more. The same run goes on at the new primary.

Covers: sink.data_source.commit_parcels, offsets_store.recovery.recover, offsets_store.commit.batch_job.
"""

from __future__ import annotations

import json
import random
import shutil
import uuid
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg
import pytest
from pyspark import TaskContext
from pyspark.sql import types as t
from replicated_postgres import ReplicatedPostgres, url_of
from support.committed_rows import rows
from support.sent_rows import arrow_rows
from support.sparse_query import Planned, SparseQuery, Topic
from support.two_servers import two_servers

from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.recovery.dead_letters import chosen_letters
from pgonce.offsets_store.recovery.doctor import Finding, examine
from pgonce.offsets_store.recovery.recover import recover_checkpoint
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.commit_parcels import commit_parcels
from pgonce.sink.data_source.task_writer import MicroBatch, TaskWriter
from pgonce.sink.dead_letters.replay import replay_letters
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.planned_batch import newest_uncommitted_entry
from pgonce.sink.options.destination import destination
from pgonce.sink.options.sink_options import parse_options
from pgonce.sink.writing.write_batch import write_batch_in_tx

RECORDS, PER_BATCH, KEPT = 60, 10, 3
# Batches are cut otherwise when they are planned again.
PER_LATER_BATCH = 7
BAD = 10
STRUCT = t.StructType([
    t.StructField("id", t.LongType()),
    t.StructField("kind", t.StringType()),
    t.StructField("amount", t.LongType()),
    t.StructField("seq", t.LongType()),
    t.StructField("gone", t.BooleanType()),
    t.StructField("topic", t.StringType()),
    t.StructField("partition", t.IntegerType()),
    t.StructField("offset", t.LongType()),
])  # fmt: skip
COLUMNS = (
    "id bigint {key}, kind text, amount bigint CHECK (amount <> 10), seq bigint, gone boolean, "
    'topic text, "partition" int, "offset" bigint'
)
BY_KEY = {"keys": "id", "orderBy": "seq", "onlyNewer": "true"}
APPLY = {**BY_KEY, "mode": "apply", "deleteWhen": "gone"}
ROUTES = {
    "whole": {"table": "routed_rows", "deadLetters": "routed_letters"},
    "newest": {"table": "routed_keys", **APPLY, "keys": ["id"], "onlyNewer": True},
}


class Change(NamedTuple):
    """What the source says of a key; the greatest ``seq`` of a key is its newest change."""

    id: int
    kind: str
    amount: int
    seq: int
    gone: bool


def changes(*, some_bad: bool) -> list[Change]:
    """The source. Changes come late, also those that are older than a delete, and then in another batch."""
    # With this seed, eight changes would bring a row back if a delete in an earlier batch were forgotten.
    drawn = random.Random(2716)
    order = sorted(range(RECORDS), key=lambda seq: seq + drawn.randint(0, 3 * PER_BATCH))
    return [
        Change(
            drawn.randint(1, 12),
            kind := drawn.choice(["whole", "newest"]),
            # A bad change of a key need not be seen to be bad, because a newer one of its batch may take its place.
            BAD if some_bad and kind == "whole" and drawn.random() < 0.2 else seq % BAD,
            seq,
            drawn.random() < 0.5,
        )
        for seq in order
    ]


class Way(NamedTuple):
    """How a query writes: its options, the tables of all rows and of the newest of each key, and that of bad rows."""

    options: dict[str, str]
    all_rows: str | None = None
    newest: str | None = None
    letters: str | None = None
    deletes: bool = False


WAYS = {
    "append": Way({"table": "appended"}, "appended"),
    "staged": Way({"table": "staged", "inlineBytes": "0", "receiver": "off"}, "staged"),
    "positions": Way({"table": "placed", "positionColumns": "topic,partition,offset"}, "placed"),
    "upsert": Way({"table": "upserted", "mode": "upsert", **BY_KEY}, newest="upserted"),
    "apply": Way({"table": "applied", **APPLY}, newest="applied", deletes=True),
    "apply_staged": Way(
        {"table": "merged", "inlineBytes": "0", "receiver": "off", **APPLY}, newest="merged", deletes=True
    ),
    "route": Way(
        {"route": "kind", "tables": json.dumps(ROUTES)}, "routed_rows", "routed_keys", "routed_letters", deletes=True
    ),
    "letters": Way({"table": "mostly", "deadLetters": "true"}, "mostly", letters="pgonce.dead_letters"),
    "own_letters": Way({"table": "as_well", "deadLetters": "aside"}, "as_well", letters="aside"),
    # The ways above lose two batches that Spark believes to be committed, and `recover` takes them back.
    "sparse": Way(
        {"table": "sparse", "positionColumns": "topic,partition,offset", "asyncProgressTrackingEnabled": "true"},
        "sparse",
    ),
    "listener": Way({"table": "heard", "offsetsFrom": "listener"}, "heard"),
    "not_noted": Way({"table": "not_noted", **APPLY}, newest="not_noted", deletes=True),
    "all_lost": Way({"table": "made_later", "createTable": "true"}, "made_later"),
    "replayed": Way({"table": "mended", "deadLetters": "lost_replay"}, "mended", letters="lost_replay"),
    "old_primary": Way({"table": "two_pasts"}, "two_pasts"),
}
LOSE_TWO = ("append", "staged", "positions", "upsert", "apply", "apply_staged", "route", "letters", "own_letters")


class PlayedTask:
    """What Spark tells a task that writes a query's batch."""

    def __init__(self, query: SparseQuery, batch_id: int) -> None:
        self._properties = {
            "sql.streaming.queryId": query.query_id,
            "streaming.sql.batchId": str(batch_id),
            "spark.jobGroup.id": query.run_id,
        }

    def getLocalProperty(self, name: str) -> str | None:
        """The identity of the query, the run and the batch."""
        return self._properties.get(name)

    def partitionId(self) -> int:
        """The only one."""
        return 0

    def taskAttemptId(self) -> int:
        """The first one."""
        return 1


@dataclass
class Writing:
    """One query, its source, and the tables into which it writes."""

    way: Way
    feed: list[Change]
    query: SparseQuery
    url: str

    def commit(self, planned: Planned) -> Verdict:
        """Encode a batch's rows in a task, and commit its parcel; Spark's own record of it is not written."""
        raw = {"url": self.url, "checkpointLocation": str(self.query.root), "retryTimeout": "20", **self.way.options}
        options = parse_options(raw, overwrite=False)
        values = [(*self.feed[at], "t", 0, at) for at in range(planned.start.get(0, 0), planned.end[0])]
        entry = None if self.is_sparse else newest_uncommitted_entry(str(self.query.root))
        writer = TaskWriter(options, STRUCT, MicroBatch(entry, planned.planned_at_ms))
        with patch.object(TaskContext, "get", return_value=PlayedTask(self.query, planned.batch_id)):
            parcel = writer.write(iter([arrow_rows(STRUCT, values)]))
        return commit_parcels(options, encoded_columns(writer.written_type), [parcel], planned.batch_id)

    @property
    def is_sparse(self) -> bool:
        """Whether Spark writes the entries of some batches only."""
        return "asyncProgressTrackingEnabled" in self.way.options

    def run(self, records: int = PER_BATCH) -> Verdict | None:
        """Plan the next batch, commit it, and have Spark note that; None where the source has nothing new."""
        planned = self.query.plan({0: records}, is_due=not self.is_sparse)
        if planned is None:
            return None
        self.query.write_entry(planned)
        verdict = self.commit(planned)
        self.query.write_commit(planned)
        self.query.advance(planned)
        return verdict

    def finish(self) -> set[Verdict]:
        """Start once more, and run until the source has nothing new; what the batches were."""
        self.query.start()
        return {verdict for verdict in iter(lambda: self.run(PER_LATER_BATCH), None) if verdict}

    def expected(self, upto: int) -> dict[str, list[Any]]:
        """What each table holds after so many changes, one by one."""
        found: dict[str, list[Any]] = {
            table: [] for table in (self.way.all_rows, self.way.newest, self.way.letters) if table
        }
        newest: dict[int, Change] = {}
        for change in self.feed[:upto]:
            if self.way.newest and (self.way.all_rows is None or change.kind == "newest"):
                newest[change.id] = max(change, newest.get(change.id, change), key=lambda each: each.seq)
            elif change.amount == BAD:
                assert self.way.letters
                found[self.way.letters].append(change.seq)
            elif self.way.all_rows:
                found[self.way.all_rows].append(change[:4])
        if self.way.newest:
            left = [each for each in newest.values() if not (self.way.deletes and each.gone)]
            found[self.way.newest] = [each[:4] for each in left]
        return {table: sorted(rows) for table, rows in found.items()}

    def stored(self) -> dict[str, list[Any]]:
        """What each table holds."""
        found: dict[str, list[Any]] = {}
        with closing(psycopg.connect(self.url, autocommit=True)) as connection:
            for table in (self.way.all_rows, self.way.newest):
                if table:
                    found[table] = connection.execute(f"SELECT id, kind, amount, seq FROM {table}".encode()).fetchall()
            if self.way.letters:
                select = f"SELECT (row_data ->> 'seq')::bigint FROM {self.way.letters} WHERE query_id = %s"
                letters = connection.execute(select.encode(), [self.query.query_id]).fetchall()
                found[self.way.letters] = [seq for (seq,) in letters]
        return {table: sorted(rows) for table, rows in found.items()}

    def assert_holds(self, upto: int = RECORDS) -> None:
        """The tables hold what so many changes leave."""
        assert self.stored() == self.expected(upto)


@dataclass
class Failover:
    """What is left after it."""

    old: ReplicatedPostgres
    new: ReplicatedPostgres
    writings: dict[str, Writing]
    url: str


def job(url: str, key: str) -> JobVerdict:
    """Run a batch job that appends one row."""

    def publish(connection: Any, *_: None) -> Published:
        where = destination("jobs", "append", (), None)
        write_batch_in_tx(driver_connection(connection), where, rows({"kept": 1, "lost": 2}[key]))
        return Published(1, "inline")

    settings = CommitSettings(url, lock_timeout=2, retry_timeout=20)
    return commit_job(settings, Job(key, uuid.uuid4()), Work(lambda _: "public.jobs", publish)).verdict


@pytest.fixture(scope="module")
def failover(tmp_path_factory):
    """The queries after a failover to a standby that had three of the five batches of each of them."""
    with two_servers() as (one, two):
        # The new primary comes first, so that the old one is not found once both take writes.
        url = url_of(two, one, target_session_attrs="read-write")
        ensure_ledger(url)
        with closing(psycopg.connect(one.uri(), autocommit=True)) as admin:
            admin.execute("CREATE TABLE jobs (id bigint, name text)")
            for way in WAYS.values():
                for table in (way.all_rows, way.newest):
                    if table and "createTable" not in way.options:
                        key = "PRIMARY KEY" if table == way.newest else ""
                        admin.execute(f"CREATE TABLE {table} ({COLUMNS.format(key=key)})".encode())
                if way.letters and "." not in way.letters:
                    create = f"CREATE TABLE {way.letters} (LIKE pgonce.dead_letters INCLUDING ALL)"
                    admin.execute(create.encode())
        folder = tmp_path_factory.mktemp("checkpoints")
        writings = {
            name: Writing(
                way, changes(some_bad=bool(way.letters)), SparseQuery(folder / name, Topic({0: [1] * RECORDS})), url
            )
            for name, way in WAYS.items()
        }
        _publish(writings, KEPT, leaving_out="all_lost")
        assert job(url, "kept") is JobVerdict.PUBLISHED
        two.wait_for(one)
        two.hear_nothing()
        _publish(writings, 2, leaving_out="not_noted")
        # This one's driver is killed before Spark has noted its only batch that will be lost.
        writing = writings["not_noted"]
        planned = writing.query.plan({0: PER_BATCH}, is_due=True)
        writing.query.write_entry(planned)
        assert writing.commit(planned) is Verdict.NEW
        assert job(url, "lost") is JobVerdict.PUBLISHED
        _replay(writings["replayed"])
        one.halt("sigkill")
        two.promote()
        yield Failover(one, two, writings, url)


def _publish(writings: dict[str, Writing], batches: int, *, leaving_out: str) -> None:
    for name, writing in writings.items():
        if name != leaving_out:
            for _ in range(batches):
                assert writing.run() is Verdict.NEW


def _replay(writing: Writing) -> int:
    """Mend the letters of a query, and replay them; how many went into the table."""
    with closing(psycopg.connect(writing.url, autocommit=True)) as connection:
        mend = f"UPDATE {writing.way.letters} SET row_data = jsonb_set(row_data, '{{amount}}', '0')"
        connection.execute(mend.encode())
    letters = chosen_letters(writing.url, writing.query.query_id, None, table=writing.way.letters)
    groups = replay_letters(letters, writing.url, reason="mended")
    return sum(len(group.replayed) for group in groups)


def refused(writing: Writing, code: str) -> str:
    """The next batch is refused by this code, and nothing is written; what the error says."""
    before = writing.stored()
    with pytest.raises(PgonceError) as error:
        writing.run()
    assert error.value.code == code
    assert writing.stored() == before
    return str(error.value)


@pytest.mark.parametrize("name", LOSE_TWO)
def test_the_next_batch_is_refused_and_after_recover_nothing_lacks(name, failover):
    """The run goes on by itself at the new primary, and is told; two batches are run again, cut otherwise."""
    writing = failover.writings[name]
    checkpoint = str(writing.query.root)
    writing.assert_holds(KEPT * PER_BATCH)
    for _ in range(2):
        assert "runs batch 5" in (says := refused(writing, "GAP"))
        assert "the last one published here is 2" in says
        # Spark would start it again, and would run the batch again.
        writing.query.start()
    writing.assert_holds(KEPT * PER_BATCH)
    assert examine(checkpoint, failover.url).finding is Finding.RECOVERABLE
    assert recover_checkpoint(checkpoint, failover.url, quiet_seconds=0).stands_at == KEPT - 1
    assert writing.finish() == {Verdict.NEW}
    writing.assert_holds()


def test_rows_that_carry_their_positions_need_no_recovery_where_spark_notes_few_batches(failover):
    """The run is refused; a start begins at the newest entry, and rows that the new primary has are dropped."""
    writing = failover.writings["sparse"]
    refused(writing, "GAP")
    assert examine(str(writing.query.root), failover.url).finding is not Finding.NEEDS_PERSON
    assert writing.finish() == {Verdict.OVERLAP, Verdict.NEW}
    writing.assert_holds()


def test_where_the_ledger_has_no_offsets_a_person_is_asked(failover):
    """With ``offsetsFrom=listener`` and no listener, ids show the gap, and nothing shows where the batches ended."""
    writing = failover.writings["listener"]
    checkpoint = str(writing.query.root)
    refused(writing, "GAP")
    assert examine(checkpoint, failover.url).finding is Finding.NEEDS_PERSON
    with pytest.raises(PgonceError, match=r"\[RECOVERY_UNPROVEN\].*offsetsFrom=listener"):
        recover_checkpoint(checkpoint, failover.url, quiet_seconds=0)
    writing.assert_holds(KEPT * PER_BATCH)


def test_a_batch_that_spark_has_not_noted_is_written_again(failover):
    """The driver that starts again runs it anyway, so nothing needs to be recovered."""
    writing = failover.writings["not_noted"]
    writing.assert_holds(KEPT * PER_BATCH)
    assert writing.finish() == {Verdict.NEW}
    writing.assert_holds()


def test_a_query_that_lost_all_of_its_batches(failover, tmp_path):
    """It is refused, also once it is started again; a new checkpoint begins where the old one did, and it is whole."""
    writing = failover.writings["all_lost"]
    with pytest.raises(PgonceError, match=r"\[LEDGER_GONE\]"):
        writing.run()
    writing.query.start()
    with pytest.raises(PgonceError, match=r"\[LEDGER_GONE\]"):
        writing.run()
    with patch.dict("pgonce.offsets_store.commit.one_try._done", {}, clear=True):
        writing.query.start()
        with pytest.raises(PgonceError, match=r"\[UNKNOWN\]"):
            writing.run()
    begin = writing.query.root / "sources/0/0"
    new = SparseQuery(tmp_path / "new", writing.query.topic)
    shutil.copy(begin, new.root / "sources/0/0")
    writing.query = new
    assert writing.finish() == {Verdict.NEW}
    writing.assert_holds()


def test_a_batch_job_whose_key_is_lost_writes_its_rows_again(failover):
    """And one whose key is there is skipped."""
    assert job(failover.url, "kept") is JobVerdict.SKIPPED
    assert job(failover.url, "lost") is JobVerdict.PUBLISHED
    assert job(failover.url, "lost") is JobVerdict.SKIPPED
    with closing(psycopg.connect(failover.url, autocommit=True)) as connection:
        assert connection.execute("SELECT id FROM jobs ORDER BY id").fetchall() == [(1,), (2,)]


def test_dead_letters_whose_replay_is_lost_are_there_again(failover):
    """Letters go and rows come in one transaction, so both go back, and each row is in the table once."""
    writing = failover.writings["replayed"]
    writing.assert_holds(KEPT * PER_BATCH)
    assert recover_checkpoint(str(writing.query.root), failover.url, quiet_seconds=0).stands_at == KEPT - 1
    assert writing.finish() == {Verdict.NEW}
    letters = writing.expected(RECORDS)["lost_replay"]
    assert _replay(writing) == len(letters) > 0
    found = writing.stored()
    assert found["lost_replay"] == []
    assert sorted(row[3] for row in found["mended"]) == list(range(RECORDS))


def test_an_old_primary_that_comes_back_as_it_was(failover):
    """Both servers have batches 3 and 4, which are not the same; the query is refused there, and can be taken there."""
    writing = failover.writings["old_primary"]
    checkpoint = str(writing.query.root)
    refused(writing, "GAP")
    recover_checkpoint(checkpoint, failover.url, quiet_seconds=0)
    writing.query.start()
    for _ in range(2):
        assert writing.run() is Verdict.NEW
    failover.old.start()
    writing.url = url_of(failover.old)
    writing.assert_holds(5 * PER_BATCH)
    refused(writing, "DISJOINT")
    assert recover_checkpoint(checkpoint, writing.url, quiet_seconds=0).stands_at == KEPT + 1
    assert writing.finish() == {Verdict.NEW}
    writing.assert_holds()
