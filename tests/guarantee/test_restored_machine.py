"""
Restore databases and checkpoints to older states under queries of every mode, and compare the tables with the source.

Runs in: pytest. Invariant: a batch is published only where the tables end, and skipped only where they hold it; after
:func:`recover_checkpoint` the query goes on, and in the end the tables and the dead letters are what the source's
changes leave one by one. Each is there once.

Spark is played: it plans batches, writes a real checkpoint, and is killed between any two steps. A restore exchanges
the whole database for an earlier copy. ``PGONCE_MODEL_EXAMPLES=2000 pytest tests/guarantee/test_restored_machine.py``
runs longer.

Covers: pgonce.recovery.recover, pgonce.recovery.plan, offsets_store.ledger.record,
offsets_store.commit.batch_job, sink.writing.write_batch.
"""

from __future__ import annotations

import copy
import itertools
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from pyspark.sql import types as t
from sqlalchemy import Connection
from support.histories import live_through
from support.query_on_disk import QueryOnDisk, Topic
from support.rows import given_rows
from support.sent_rows import arrow_rows
from support.with_rooms import work_into, write_batch_in_tx

from pgonce.offsets_store.checkpoint.reader import Checkpoint
from pgonce.offsets_store.commit.batch_job import JobVerdict, commit_job
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger import record
from pgonce.offsets_store.ledger.batch_jobs import Job
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.ledger.published import Published
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.decide import PUBLISH, SKIP
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.recovery.recover import recover_checkpoint
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.from_checkpoint import Origin, describe_batch
from pgonce.sink.options.destination import destination
from pgonce.sink.options.routes import Routes, where_to
from pgonce.sink.writing.rows import Rows

EXAMPLES = int(os.environ.get("PGONCE_MODEL_EXAMPLES", "60"))
BAD = 10
# A batch of which no row can be written stops the query, so bad rows are further apart than a batch is long.
APART, LONGEST = 8, 6
# Whether a change goes into a table that keeps the newest of each key, or into one that keeps all.
NEWEST, ALL = "newest", "every"
COLUMNS = "id bigint {key}, kind text, first bigint CHECK (first <> 10), seq bigint, gone boolean"
TABLES = ("newest", "every", "newest_routed", "every_routed")
NARROW = t.StructType([
    t.StructField("id", t.LongType()),
    t.StructField("kind", t.StringType()),
    t.StructField("first", t.LongType()),
    t.StructField("seq", t.LongType()),
    t.StructField("gone", t.BooleanType()),
])  # fmt: skip
WIDE = t.StructType([*NARROW, t.StructField("more", t.StringType())])
BY_KEY = {"mode": "apply", "keys": ("id",), "order_by": "seq", "delete_when": "gone", "deletes": "hard"}


class Change(NamedTuple):
    """What the source says; its position is ``seq``."""

    id: int
    kind: str
    first: int
    seq: int
    gone: bool


@dataclass
class Sink:
    """One of the sinks of a query, and what its tables hold: ``by_key`` and ``rows``, with their column ``more``."""

    kind: str
    diverts: bool
    widens: bool
    only_newer: bool
    last: int = -1
    end: int = 0
    by_key: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    rows: list[tuple[Any, ...]] = field(default_factory=list)
    letters: list[int] = field(default_factory=list)
    published: dict[int, str] = field(default_factory=dict)

    @property
    def tables(self) -> tuple[str | None, str | None]:
        """The table of the newest and the table of all, as far as it has them."""
        routed = ("newest_routed", "every_routed")
        return routed if self.kind == "route" else ("newest", None) if self.kind == NEWEST else (None, "every")

    def work(self, rows: Rows) -> Work:
        """What its commit does."""
        how: dict[str, Any] = {"dead_letters": self.diverts}
        if self.widens:
            how["schema_evolution"] = "addColumns"
        by_key = {**BY_KEY, "only_newer": self.only_newer}
        if self.kind == "route":
            tables = {"newest": {"table": "newest_routed", **camel(by_key)}, "every": {"table": "every_routed"}}
            routes = where_to(route="kind", tables=tables, **how)
            assert isinstance(routes, Routes)
            return work_into("routed", routes, rows)
        if self.kind == NEWEST:
            return work_into(None, destination("newest", **by_key, **how), rows)
        return work_into(None, destination("every", **how), rows)

    def take(self, changes: list[Change], *, wide: bool) -> None:
        """Let the tables have what the changes leave one by one."""
        for change in changes:
            if change.first == BAD and not (change.gone and self.goes_by_key(change)):
                self.letters.append(change.seq)
                continue
            row = (*change, more(change) if wide and self.widens else None)
            if not self.goes_by_key(change):
                self.rows.append(row)
            elif change.gone:
                self.by_key.pop(change.id, None)
            else:
                # A column that a batch does not have stays as it was.
                before = self.by_key.get(change.id)
                kept = row[:4]
                extra = row[-1] if wide else (before[-1] if before else None)
                self.by_key[change.id] = (*kept, extra)

    def goes_by_key(self, change: Change) -> bool:
        """Whether the change goes into the table of the newest."""
        return self.kind == NEWEST or (self.kind == "route" and change.kind == NEWEST)


def camel(options: dict[str, Any]) -> dict[str, Any]:
    """The options as ``tables`` names them."""
    names = {"order_by": "orderBy", "delete_when": "deleteWhen", "only_newer": "onlyNewer"}
    texts = {True: "true", False: "false"}
    return {names.get(name, name): texts.get(v, v) if isinstance(v, bool) else v for name, v in options.items()}


def more(change: Change) -> str:
    """The value of a column that the source has got later."""
    return f"more {change.seq}"


class Killed(BaseException):
    """The process of a batch job is gone."""


class Kept(NamedTuple):
    """What was put aside: the database's copy, what the model had then, and the checkpoint."""

    name: str
    sinks: list[Sink]
    jobs: set[str]
    folder: Path
    is_disturbed: bool


class Database:
    """The database, and the copies of it that were kept, each in a schema of its own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.admin = psycopg.connect(url, autocommit=True)
        found = self.admin.execute(
            "SELECT quote_ident(table_schema) || '.' || quote_ident(table_name), table_schema || '_' || table_name "
            "FROM information_schema.tables WHERE table_type = 'BASE TABLE' AND table_schema IN ('public', 'pgonce') "
            "AND table_name <> 'schema_version'"
        ).fetchall()
        self.tables = dict(found)

    def keep(self, name: str) -> None:
        """Put all rows aside."""
        copies = "".join(f"CREATE TABLE {name}.{kept} AS TABLE {table};" for table, kept in self.tables.items())
        self.admin.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE; CREATE SCHEMA {name}; {copies}".encode())

    def restore(self, name: str) -> None:
        """Bring all tables back as they were, and their columns; as with any restore, sessions do not outlive it."""
        self.admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE application_name LIKE 'pgonce%' AND datname = current_database() AND pid <> pg_backend_pid()"
        )
        columns = self.admin.execute(
            "SELECT table_schema || '_' || table_name, string_agg(quote_ident(column_name), ', ') "
            "FROM information_schema.columns WHERE table_schema IN ('public', 'pgonce') AND is_generated = 'NEVER' "
            "AND (column_name <> 'more' OR EXISTS (SELECT FROM information_schema.columns AS kept "
            "WHERE kept.table_schema = %s AND kept.table_name = columns.table_schema || '_' || columns.table_name "
            "AND kept.column_name = 'more')) GROUP BY 1",
            [name],
        ).fetchall()
        with self.admin.transaction():
            self.admin.execute("SET LOCAL session_replication_role = replica")
            self.admin.execute(f"TRUNCATE {', '.join(self.tables)}".encode())
            for kept, names in columns:
                table = next((table for table, as_kept in self.tables.items() if as_kept == kept), None)
                if table is None:
                    continue
                if table.startswith("public.") and "more" not in names:
                    self.admin.execute(f"ALTER TABLE {table} DROP COLUMN IF EXISTS more".encode())
                insert = f"INSERT INTO {table} ({names}) OVERRIDING SYSTEM VALUE SELECT {names} FROM {name}.{kept}"
                self.admin.execute(insert.encode())

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        """What a query answers."""
        return self.admin.execute(query.encode()).fetchall()


CHANGES = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from([NEWEST, ALL]), st.booleans(), st.sampled_from([False, False, True])),
    min_size=40,
    max_size=40,
)
SINKS = st.lists(st.sampled_from([NEWEST, ALL, "route"]), min_size=1, max_size=2, unique=True)
SIZES = st.lists(st.integers(1, LONGEST), min_size=1, max_size=5)
DEEDS = [*["run"] * 3, *["back up", "restore", "job"] * 2, "kill", "older checkpoint", "recover", "widen"]
JOB = t.StructType([t.StructField("key", t.StringType()), t.StructField("n", t.LongType())])


class Restoring(RuleBasedStateMachine):
    """One query, one source, one or two sinks, and people with backups."""

    database: Database
    folders: Iterator[Path]

    @initialize(
        changes=CHANGES,
        kinds=SINKS,
        diverts=st.booleans(),
        widens=st.booleans(),
        only_newer=st.booleans(),
        retain=st.integers(1, 4),
        keep=st.integers(2, 6),
    )
    def begin(
        self, changes: list, kinds: list, diverts: bool, widens: bool, only_newer: bool, retain: int, keep: int
    ) -> None:
        """A source, and a query that has done nothing yet."""
        self.feed = [
            Change(i, kind, BAD if diverts and bad and seq % APART == 0 else 1, seq, gone)
            for seq, (i, kind, bad, gone) in enumerate(changes)
        ]
        self.sinks = [Sink(kind, diverts, widens, only_newer) for kind in kinds]
        self.retain, self.keep = retain, keep
        self.query = QueryOnDisk(next(self.folders), Topic({0: [1] * len(self.feed)}))
        self.is_running = False
        self.wide = False
        self.is_disturbed = False
        self.kept: list[Kept] = []
        self.jobs: set[str] = set()
        self.database.restore("kept_blank")
        note(f"{kinds} {diverts=} {widens=} {only_newer=} {retain=} {keep=}")

    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """One thing more happens."""
        deed = data.draw(st.sampled_from(DEEDS), label="deed")
        if deed == "run":
            self.runs(data.draw(SIZES), data.draw(st.sampled_from([None] * 4 + ["planned", "first sink", "published"])))
        elif deed == "kill":
            self.kill()
        elif deed == "back up" and len(self.kept) < 3:
            self.back_up()
        elif deed == "restore" and self.kept:
            slots = st.integers(0, len(self.kept) - 1)
            self.restore(data.draw(slots), data.draw(st.none() | slots), while_running=data.draw(st.booleans()))
        elif deed == "older checkpoint" and self.kept:
            self.kill()
            self.older_checkpoint(data.draw(st.integers(0, len(self.kept) - 1)))
        elif deed == "recover":
            self.recover()
        elif deed == "job":
            self.run_job(data.draw(st.sampled_from("abc")), dies=data.draw(st.booleans()))
        elif deed == "widen":
            self.kill()
            self.wide = True

    def run_job(self, key: str, *, dies: bool) -> None:
        """A batch job runs under a key, perhaps again, and perhaps only until its rows are written."""
        body = CopyEncoder(JOB).encode(arrow_rows(JOB, [(key, 1), (key, 2)]))
        rows = given_rows(encoded_columns(JOB), 2, lambda: [body])

        def publish(connection: Connection, *_: None) -> Published:
            write_batch_in_tx(driver_connection(connection), destination("jobs"), rows)
            if dies:
                raise Killed
            return Published(2, "inline")

        settings = CommitSettings(self.database.url, Remedies(), lock_timeout=2, retry_timeout=10)
        verdict = None
        with suppress(Killed):
            work = Work(lambda _: "public.jobs", publish)
            verdict = commit_job(settings, Job(key, uuid.uuid4()), work).verdict
        note(f"job {key} {dies=}: {verdict}")
        if key in self.jobs:
            assert verdict is JobVerdict.SKIPPED
        elif verdict is not None:
            assert verdict is JobVerdict.PUBLISHED
            self.jobs.add(key)
        assert self.database.ask("SELECT key, count(*) FROM jobs GROUP BY 1 ORDER BY 1") == [
            (each, 2) for each in sorted(self.jobs)
        ]

    def kill(self) -> None:
        """The driver is gone."""
        self.is_running = False

    def runs(self, sizes: list[int], killed_at: str | None) -> None:
        """A driver runs some batches; before the last one is done it may be killed."""
        for n, size in enumerate(sizes):
            if not self.run_one(size, killed_at if n == len(sizes) - 1 else None):
                return

    def run_one(self, size: int, killed_at: str | None) -> bool:
        """Whether a batch went through."""
        if not self.is_running:
            self.query.start()
            self.is_running = True
        planned = self.query.plan({0: size})
        if planned is None:
            return False
        self.query.write_entry(planned)
        number, start, end = planned.batch_id, planned.start.get(0, 0), planned.end[0]
        if killed_at == "planned":
            self.kill()
            return False
        for n, sink in enumerate(self.sinks):
            if not self.commit(sink, number, start, end):
                self.kill()
                return False
            if killed_at == "first sink" and n == 0:
                self.kill()
                return False
        if killed_at == "published":
            self.kill()
            return False
        self.query.write_commit(planned)
        self.query.forget_before(number - self.keep)
        self.query.advance(planned)
        return True

    def commit(self, sink: Sink, number: int, start: int, end: int) -> bool:
        """Hand a batch in; whether the query goes on."""
        struct = WIDE if self.wide and sink.widens else NARROW
        changes = self.feed[start:end]
        values = [(*change, more(change))[: len(struct)] for change in changes]
        body = CopyEncoder(struct).encode(arrow_rows(struct, values))
        rows = given_rows(encoded_columns(struct), len(values), lambda: [body])
        checkpoint = Checkpoint(str(self.query.root))
        origin = Origin(self.query.query_id, self.query.run_id, number, checkpoint.newest_offset_entry())
        how = CommitSettings(
            self.database.url, Remedies(independent=True), retain_batches=self.retain, lock_timeout=2, retry_timeout=10
        )
        text = (self.query.root / f"offsets/{number}").read_text()
        try:
            verdict = commit_batch(how, describe_batch(checkpoint, origin, "changes"), sink.work(rows))
        except PgonceError as error:
            self.refused(f"batch {number} ({start} to {end}) into {sink.kind}", error, may_be=self.is_disturbed)
            return False
        note(f"batch {number} ({start} to {end}) into {sink.kind}: {verdict.name}")
        if verdict in PUBLISH:
            assert (number, start) == (sink.last + 1, sink.end)
            sink.take(changes, wide=self.wide)
            sink.last, sink.end = number, end
            sink.published[number] = text
        else:
            assert verdict in SKIP
            assert sink.published.get(number) == text
            assert end <= sink.end
        self.compare(sink)
        return True

    def back_up(self) -> None:
        """Database and checkpoint are put aside."""
        name = f"kept_{len(self.kept)}"
        self.database.keep(name)
        folder = next(self.folders)
        shutil.copytree(self.query.root, folder)
        self.kept.append(Kept(name, copy.deepcopy(self.sinks), {*self.jobs}, folder, self.is_disturbed))

    def restore(self, number: int, checkpoint: int | None, *, while_running: bool) -> None:
        """The database is what it was; perhaps the checkpoint too, of that time or another; or the driver runs on."""
        if checkpoint is not None or not while_running:
            self.kill()
        kept = self.kept[number]
        note(f"restored to {number}, {checkpoint=}")
        self.database.restore(kept.name)
        self.sinks, self.jobs = copy.deepcopy(kept.sinks), {*kept.jobs}
        if checkpoint is not None:
            self.older_checkpoint(checkpoint)
        self.is_disturbed = kept.is_disturbed or checkpoint != number

    def older_checkpoint(self, number: int) -> None:
        """The checkpoint is what it was."""
        note(f"checkpoint {number}")
        shutil.rmtree(self.query.root)
        shutil.copytree(self.kept[number].folder, self.query.root)
        self.is_disturbed = True

    def recover(self) -> bool:
        """A person recovers the stopped query; whether that was possible."""
        self.kill()
        try:
            done = recover_checkpoint(str(self.query.root), self.database.url, quiet_seconds=0)
        except PgonceError as error:
            # Where the ledger does not know the query, there is nothing to go by.
            self.refused("recovery", error, may_be=all(sink.last < 0 for sink in self.sinks))
            return False
        note(f"recovery {done.does}")
        if all(sink.last >= 0 for sink in self.sinks) or all(sink.last < 0 for sink in self.sinks):
            self.is_disturbed = False
        return True

    def refused(self, what: str, error: PgonceError, *, may_be: bool) -> None:
        """Something was refused: whatever was restored may be the reason, and nothing else."""
        note(f"{what}: {error}")
        assert may_be, f"{what}: {error}"

    def teardown(self) -> None:
        """In the end everything is there once."""
        if not hasattr(self, "sinks"):
            return
        if self.is_disturbed and not self.recover():
            return
        if self.is_disturbed:
            return
        self.kill()
        while any(sink.end < len(self.feed) for sink in self.sinks):
            assert self.run_one(LONGEST, None)
        for sink in self.sinks:
            assert sink.end == len(self.feed)
            self.compare(sink)

    def compare(self, sink: Sink) -> None:
        """Tables and dead letters are what the changes leave."""
        newest, everything = sink.tables
        for table, model in ((newest, sorted(sink.by_key.values())), (everything, sorted(sink.rows))):
            if table is None:
                continue
            names = "id, kind, first, seq" + (", gone" if table == everything else "")
            columns = f"{names}, to_jsonb(x) ->> 'more'"
            found = sorted(self.database.ask(f"SELECT {columns} FROM {table} AS x"), key=str)
            assert found == sorted(model, key=str), table
        letters = self.database.ask(
            "SELECT (row_data ->> 'seq')::int FROM pgonce.dead_letters WHERE sink_name "
            + {"route": "= 'routed'", NEWEST: "= 'public.newest'", ALL: "= 'public.every'"}[sink.kind]
        )
        found = sorted(seq for (seq,) in letters)
        by_key = {seq for seq in sink.letters if sink.goes_by_key(self.feed[seq])}
        # A bad change is not seen to be bad where a later one of its key is in the same batch.
        assert sorted({*found} | by_key) == sorted(sink.letters)
        assert len({*found}) == len(found)


def test_the_tables_are_the_source_after_every_restore(url, tmp_path):
    """Whatever is restored and killed, every change is in its tables once."""
    with psycopg.connect(url, autocommit=True) as admin:
        for table in TABLES:
            key = "PRIMARY KEY" if table.startswith(NEWEST) else ""
            admin.execute(f"CREATE TABLE {table} ({COLUMNS.format(key=key)})".encode())
        admin.execute("CREATE TABLE jobs (key text, n bigint)")
    ensure_ledger(url)
    database = Database(url)
    database.keep("kept_blank")
    folders = (tmp_path / str(n) for n in itertools.count())
    with database.admin, patch.object(record, "PRUNE_EVERY", 3):
        live_through(Restoring, EXAMPLES, 12, database=database, folders=folders)
