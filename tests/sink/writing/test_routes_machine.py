"""
Each row of the source ends once, in its table or among the dead letters, whatever fault hits the commit.

Runs in: pytest. Invariant: after every step the tables and the letters add up to the batches that were published, each
row once; a batch that was refused, or whose session was ended, has left nothing. Hypothesis chooses the rows, the
transports, the statement before which a session is ended, and what people do with letters; the commit with its retries,
the replay of letters and Postgres are real. ``PGONCE_MODEL_EXAMPLES=2000 pytest
tests/sink/writing/test_routes_machine.py`` runs longer.

Covers: sink.writing.routes, sink.writing.write_batch, pgonce.dead_letters.replay.
"""

from __future__ import annotations

import json
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from psycopg.types.json import Jsonb
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.histories import live_through
from support.sent_rows import sent
from support.typed_rows import struct_of
from support.with_rooms import work_into

from pgonce.dead_letters.chosen_letters import chosen_letters
from pgonce.dead_letters.replay import replay_letters
from pgonce.dead_letters.replay_rules import Kept
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.verdict.facts import PlannedBatch, Remedies
from pgonce.sink.encoding.unfit_rows import UnfitRow
from pgonce.sink.options.routes import where_to

EXAMPLES = int(os.environ.get("PGONCE_MODEL_EXAMPLES", "100"))
STRUCT = struct_of(
    {"kind": t.StringType(), "id": t.LongType(), "name": t.StringType(), "seq": t.LongType(), "gone": t.BooleanType()}
)
TABLES = """
CREATE TABLE parents (id bigint PRIMARY KEY);
INSERT INTO parents VALUES (1), (2), (3);
CREATE TABLE events (id bigint REFERENCES parents, name varchar(4) CHECK (name <> 'no'), seq bigint UNIQUE);
CREATE TABLE newest (id bigint PRIMARY KEY, name varchar(4), seq bigint);
CREATE TABLE copied (id bigint PRIMARY KEY, name varchar(4) CHECK (name <> 'no'), seq bigint)
"""
KINDS = {
    "events": {"mode": "append"},
    "newest": {"mode": "upsert", "keys": ["id"], "order_by": "seq", "only_newer": True},
    "copied": {"mode": "apply", "keys": ["id"], "order_by": "seq", "only_newer": True, "delete_when": "gone"},
}
Strikes = list[tuple[int, bool]] | None
UNKNOWN, UNFIT = "taxes", "nul"
AT_COMMIT = 0
STRIKES = st.one_of(
    st.none(), st.lists(st.tuples(st.just(AT_COMMIT) | st.integers(1, 45), st.booleans()), min_size=1, max_size=2)
)


class Row(NamedTuple):
    """A row of the source; ``seq`` is its own."""

    kind: str
    id: int | None
    name: str
    seq: int
    gone: bool

    @property
    def may_be_written(self) -> bool:
        """Whether its table takes it."""
        if self.kind == UNKNOWN or self.name == UNFIT:
            return False
        if self.kind == "copied" and self.gone:
            return self.id is not None
        fits = len(self.name) <= 4 and (self.name != "no" or self.kind == "newest")
        return fits and (self.id in (1, 2, 3, None) if self.kind == "events" else self.id is not None)


@dataclass
class Batch:
    """A batch that was planned, and its rows."""

    planned: PlannedBatch
    rows: list[Row]
    transport: str


@contextmanager
def sessions_end(url: str, strikes: Strikes) -> Iterator[None]:
    """
    End the session that executes such a statement, counted over all of them.

    Each strike has the statement's number, or says that it is COMMIT, and whether it was executed, so that only its
    answer is lost.
    """
    left, executed = list(strikes or ()), 0
    execute = psycopg.Cursor.execute

    def end(cursor: psycopg.Cursor[Any]) -> None:
        pid = cursor.connection.info.backend_pid
        with psycopg.connect(url, autocommit=True) as admin, patch.object(psycopg.Cursor, "execute", execute):
            admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])

    def struck(cursor: psycopg.Cursor[Any], *args: Any, **how: Any) -> Any:
        nonlocal executed
        executed += 1
        if not left or (executed < left[0][0] if left[0][0] else args[0] != "COMMIT"):
            return execute(cursor, *args, **how)
        executed, (_, is_answer) = 0, left.pop(0)
        if is_answer:
            execute(cursor, *args, **how)
        end(cursor)
        if is_answer:
            raise psycopg.OperationalError("the answer was lost")
        return execute(cursor, *args, **how)

    with patch.object(psycopg.Cursor, "execute", struck):
        yield


def without_raising(deed: Callable[[], str]) -> str | PgonceError:
    """The result of a deed, or its error of ours; any other error ends the test."""
    try:
        return deed()
    except PgonceError as error:
        return error


ROWS = st.lists(
    st.tuples(
        st.sampled_from(["events", "events", "newest", "copied", "copied", UNKNOWN]),
        st.sampled_from([1, 2, 3, 1, 2, 3, 4, None]),
        st.sampled_from(["a", "b", "a", "b", "c", "no", "long name", UNFIT]),
        st.sampled_from([False, False, True]),
    ),
    max_size=8,
)


class Routed(RuleBasedStateMachine):
    """Batches of one query on their way into three tables."""

    url = ""

    @initialize(unknown=st.sampled_from(["deadLetters", "drop"]))
    def begin(self, unknown: str) -> None:
        """Empty tables, and a query that nobody knows."""
        self.connection = psycopg.connect(self.url, autocommit=True)
        self.connection.execute(
            "TRUNCATE events, newest, copied, pgonce.tombstones, pgonce.dead_letters, pgonce.interventions, "
            "pgonce.writers, pgonce.batches, pgonce.runs, pgonce.replays CASCADE"
        )
        self.query, self.seq, self.next = f"q{uuid.uuid4()}", 0, 0
        self.unknown = unknown
        self.where = where_to(route="kind", tables=KINDS, unknown_routes=unknown, dead_letters=True)
        self.refused: Batch | None = None
        self.last: Batch | None = None
        self.published: list[Row] = []
        self.repaired: set[int] = set()
        self.gone: set[int] = set()

    def teardown(self) -> None:
        """Each history has a session of its own."""
        if hasattr(self, "connection"):
            self.connection.close()

    @rule(
        rows=ROWS,
        transport=st.sampled_from(["inline", "inline", "staged", "both"]),
        strikes=STRIKES,
        patience=st.sampled_from([0, 5]),
    )
    def publish(self, rows: list, transport: str, strikes: Strikes, patience: int) -> None:
        """The next batch comes; or the one that failed comes again, with the same rows."""
        batch = self.refused
        if batch is None:
            made = [Row(kind, i, name, self.seq + n, gone) for n, (kind, i, name, gone) in enumerate(rows)]
            made = _without_hopeless(made, self.unknown)
            self.seq += len(rows)
            batch = Batch(make_planned_batch(self.next, query_id=self.query), made, transport)
        else:
            batch = replace(batch, planned=replace(batch.planned, attempt=uuid.uuid4()), transport=transport)
        self.refused = batch
        said = without_raising(lambda: self.commit(batch, patience, strikes))
        note(f"{batch.rows} {batch.transport} {strikes}: {said}")
        if isinstance(said, PgonceError):
            assert strikes, said
            # Only where the answer to COMMIT was lost may it be there, and then nobody says that it is not.
            assert not self.is_published(batch) or said.code == "COMMIT_UNKNOWN"
        else:
            assert said in ("NEW", "LANDED")
            assert self.is_published(batch)
        if self.is_published(batch):
            self.done(batch)
        self.compare()

    def is_published(self, batch: Batch) -> bool:
        """What the ledger says of this attempt."""
        asked = "SELECT FROM pgonce.batches WHERE attempt = %s"
        return self.connection.execute(asked, [batch.planned.attempt]).fetchone() is not None

    def commit(self, batch: Batch, patience: int, strikes: Strikes) -> str:
        """As the commit worker does."""
        fit = [row for row in batch.rows if row.name != UNFIT]
        unfit = tuple(
            UnfitRow(json.dumps({**row._asdict(), "name": {"base64": "AA=="}}), "name", "NUL_IN_TEXT", "A NUL.")
            for row in batch.rows
            if row.name == UNFIT
        )
        rows = replace(sent(self.url, batch.transport, STRUCT, fit), unfit=lambda: unfit)
        settings = CommitSettings(self.url, Remedies(), lock_timeout=2, retry_timeout=patience)
        with sessions_end(self.url, strikes):
            return commit_batch(settings, batch.planned, work_into(None, self.where, rows)).name

    def done(self, batch: Batch) -> None:
        """It is published."""
        self.published += batch.rows
        self.refused, self.last = None, batch
        self.next += 1

    @rule(strikes=STRIKES)
    def again(self, strikes: Strikes) -> None:
        """The last batch comes again, as after a crash of the driver."""
        if self.last is None or self.refused is not None:
            return
        batch = replace(self.last, planned=replace(self.last.planned, attempt=uuid.uuid4(), run_id=str(uuid.uuid4())))
        said = without_raising(lambda: self.commit(batch, 0, strikes))
        assert said == "REPLAY" or strikes, said
        self.compare()

    @rule(numbers=st.lists(st.integers(0, 9), min_size=1, max_size=5), strikes=STRIKES, repairs=st.booleans())
    def replay(self, numbers: list[int], strikes: Strikes, repairs: bool) -> None:
        """Letters are repaired and replayed, some or all of them; or they are not repaired."""
        letters = self.letters()
        ids = sorted(letter for letter, seq in letters.items() if self.row(seq).kind != UNKNOWN)
        if not ids:
            return
        chosen = sorted({ids[number % len(ids)] for number in numbers})
        if repairs:
            for letter in chosen:
                self.connection.execute(
                    "UPDATE pgonce.dead_letters SET row_data = row_data || %s WHERE dead_letter_id = %s",
                    [Jsonb({"name": "x", "id": 1}), letter],
                )
                self.repaired.add(letters[letter])
        ready = all(letters[letter] in self.repaired for letter in chosen)
        said = without_raising(lambda: self.replayed(chosen, strikes))
        note(f"{chosen}: {said}")
        assert strikes or not ready or said == [], said
        self.compare()

    def replayed(self, chosen: list[int], strikes: Strikes) -> list[Kept]:
        """As the command does; the letters of rows that are refused."""
        with sessions_end(self.url, strikes):
            groups = replay_letters(chosen_letters(self.url, self.query, ids=chosen), self.url)
        return [one for group in groups for one in group.kept if one.is_refused]

    def letters(self) -> dict[int, int]:
        """The dead letters, with the ``seq`` of their rows."""
        found = self.connection.execute("SELECT dead_letter_id, row_data ->> 'seq' FROM pgonce.dead_letters").fetchall()
        assert len({seq for _, seq in found}) == len(found)
        return {letter: int(seq) for letter, seq in found}

    def row(self, seq: int) -> Row:
        """The row of the source."""
        return next(row for row in self.published if row.seq == seq)

    def is_superseded(self, row: Row, aside: set[int]) -> bool:
        """Whether a newer row of its key is written, so that nobody looks at what this one has."""
        newer = (r for r in self.published if r.seq > row.seq and r.seq not in aside)
        return (
            row.name != UNFIT
            and row.kind in ("newest", "copied")
            and any((r.kind, 1 if r.seq in self.repaired else r.id) == (row.kind, row.id) for r in newer)
        )

    def compare(self) -> None:
        """All rows are there, each once."""
        aside = set(self.letters().values())
        rows = {row.seq: row for row in self.published}
        assert aside <= set(rows)
        for row in self.published:
            if row.kind == UNKNOWN and self.unknown == "drop":
                assert row.seq not in aside
            elif row.seq in aside:
                assert row.seq in self.repaired or not row.may_be_written, row
            else:
                assert row.may_be_written or row.seq in self.repaired or self.is_superseded(row, aside), row
        there = [
            row._replace(name="x", id=1) if row.seq in self.repaired else row
            for row in self.published
            if row.seq not in aside and row.kind != UNKNOWN
        ]
        found = self.connection.execute("SELECT id, name, seq FROM events").fetchall()
        assert Counter(found) == Counter((r.id, r.name, r.seq) for r in there if r.kind == "events")
        for kind in ("newest", "copied"):
            model: dict[int | None, tuple[Any, ...]] = {}
            for row in sorted((row for row in there if row.kind == kind), key=lambda row: row.seq):
                model.pop(row.id, None)
                if not (kind == "copied" and row.gone):
                    model[row.id] = (row.id, row.name, row.seq)
            rows_of = self.connection.execute(f"SELECT id, name, seq FROM {kind}".encode()).fetchall()
            assert {row[0]: row for row in rows_of} == model
        counted = self.connection.execute(
            "SELECT batch_id, rows, counts FROM pgonce.batches ORDER BY batch_id"
        ).fetchall()
        assert [batch_id for batch_id, *_ in counted] == list(range(self.next))
        assert sum(sum(counts.values()) if counts else rows for _, rows, counts in counted) == len(self.published), (
            counted
        )


def _without_hopeless(rows: list[Row], unknown: str) -> list[Row]:
    """All of them, or one if none is written or left out: a batch of several bad rows alone is refused."""
    may_go_on = any(row.may_be_written or (row.kind == UNKNOWN and unknown == "drop") for row in rows)
    return rows if may_go_on else rows[:1]


def run(url: str, examples: int) -> None:
    """Write histories in the database of this URL."""
    ensure_ledger(url)
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(TABLES.encode())

    live_through(Routed, examples, 8, url=url)


def test_each_row_ends_once(url):
    """A few histories, for every run of the tests."""
    run(url, 8)


def test_each_row_ends_once_in_many_more_histories(url):
    """Many more of them."""
    run(url, EXAMPLES)
