"""
What a batch leaves, and which of its rows are put aside, is what the table itself says of each change.

Runs in: pytest. Invariant: if Postgres refuses no change of a batch that comes one by one, the batch leaves the same
rows. Otherwise the table as it finally stands refuses each row that was put aside, and every other row is there, or was
replaced by a later one of its key. A batch that is refused leaves nothing, and for a reason that is listed here.
Hypothesis chooses the table, its rows and the batches. The other side, :mod:`support.refused_rows`, has none of the
product's code. ``PGONCE_MODEL_EXAMPLES=2000 pytest tests/sink/writing/bad_rows/test_bad_rows_machine.py -m thorough``
runs longer.

Covers: sink.writing.bad_rows.in_turn, sink.writing.bad_rows.write_what_fits, sink.writing.by_key.one_by_one.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

import psycopg
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from psycopg import sql
from pyspark.sql import types as t
from support import refused_rows as alone
from support.batches import make_batch
from support.refused_rows import CHANGES, DEFERRED, LEFT_OUT, STANDING, TABLES, Change, Refusal, Table, rows_of, undone
from support.typed_rows import typed_rows
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import PgonceError
from pgonce.sink.options.destination import destination

EXAMPLES = int(os.environ.get("PGONCE_MODEL_EXAMPLES", "400"))
COLUMNS = {
    "id": t.LongType(), "u": t.LongType(), "parent": t.LongType(), "name": t.StringType(), "amount": t.LongType(),
    "seq": t.LongType(), "gone": t.BooleanType(),
}  # fmt: skip


class How(NamedTuple):
    """How the changes are written, and what is known of their order: all, not all, or nothing."""

    mode: str
    order: str

    @property
    def by_key(self) -> bool:
        """Whether a row replaces that of its key."""
        return self.mode != "append"

    @property
    def knows_order(self) -> bool:
        """Whether each change has a place of its own."""
        return self.order == "all"


HOWS = st.sampled_from([
    How("append", "none"),
    *(How(mode, order) for mode in ("upsert", "apply") for order in ("all", "all", "ties", "none")),
])  # fmt: skip


@dataclass
class Case:
    """A batch, and what Postgres says of it: ``refused`` changes, and ``late`` what is checked after the last one."""

    table: Table
    how: How
    changes: list[Change]
    refused: dict[Change, Refusal]
    late: Refusal | None
    rows: list[tuple]

    def said(self, refusal: Refusal) -> bool:
        """Whether Postgres refuses something in the same way one by one, or may do so in another order."""
        is_elsewhere = refusal.table == "items" or (refusal.code == "42501" and self.table.is_secured)
        is_of_trigger = bool(self.table.after) and any(change.name == "odd" for change in self.changes)
        said = [*self.refused.values(), *filter(None, [self.late])]
        return is_elsewhere or is_of_trigger or any(refusal[:2] == one[:2] for one in said)


# The codes with which a batch may be refused as a whole, where that is right, and why.
MAY_BE_REFUSED: dict[str, Callable[[Case], bool]] = {
    # Nothing says which of two rows is the newer one.
    "DOUBLED_KEYS": lambda case: case.how.order == "none" and len({c.id for c in case.changes}) < len(case.changes),
    # Nothing says whether a row had left its parent when that was deleted.
    "DELETE_ACTION": lambda case: not case.how.knows_order and case.table.acts and case.how.mode == "apply",
    # The cause is in the table. Or rows that can only be written together have a bad one among them.
    "ALL_ROWS_REFUSED": lambda case: (
        len(case.refused) == len(case.changes) > 1 or case.late is not None or is_circle(case.changes)
    ),
    # A trigger left a change out, so that the table is not what the source is.
    "TRIGGER_CHANGED_ROWS": lambda case: case.how.mode == "apply" and (
        case.table.before == alone.DROPS or case.table.is_secured
    ),
    # A policy did.
    "ROWS_NOT_WRITTEN": lambda case: case.how.mode == "apply" and case.table.is_secured,
}  # fmt: skip


def is_circle(changes: list[Change]) -> bool:
    """Whether some of the rows refer to each other."""
    parents = {change.id: change.parent for change in changes}
    for start in parents:
        at, seen = start, set()
        while at in parents and at not in seen:
            seen.add(at)
            at = parents[at]
        if at in seen and len(seen) > 1:
            return True
    return False


class World:
    """A database in which one history follows another."""

    def __init__(self, url: str, role: str) -> None:
        self.url, self.role, self.histories = url, sql.Identifier(role), 0
        self.connection = psycopg.connect(url)

    def begin(self, table: Table, how: How, stored: list[Change]) -> None:
        """A new table, with those of the rows that fit."""
        self.tidy()
        self.table, self.how, self.seq = table, how, 0
        execute = self.connection.execute
        execute("; ".join(["RESET ROLE", *table.statements(), "TRUNCATE log, pgonce.dead_letters"]).encode())
        with suppress(psycopg.Error), self.connection.transaction():
            stored = [change._replace(seq=0) for change in stored if not change.gone]
            alone.one_by_one(self.connection, stored, by_key=False)
            execute("UPDATE events SET extra = 7; SET CONSTRAINTS ALL IMMEDIATE")
        if table.referred:
            execute("INSERT INTO items SELECT id FROM events WHERE id = 1")
        if table.is_secured:
            execute(sql.SQL("SET ROLE {}").format(self.role))
        self.connection.commit()

    def tidy(self) -> None:
        """A session that has made thousands of tables is slow, and so are catalogues in which they were."""
        self.connection.rollback()
        if self.histories % 25 == 0:
            self.connection.close()
            with psycopg.connect(self.url, autocommit=True) as admin:
                admin.execute("VACUUM pg_class, pg_attribute, pg_depend, pg_type, pg_index, pg_constraint, pg_proc")
            self.connection = psycopg.connect(self.url)
        self.histories += 1

    def batch(self, drawn: list[Change]) -> None:
        """Write a batch, and judge what became of it."""
        changes, in_order = self.numbered(drawn)
        before = rows_of(self.connection)
        with undone(self.connection):
            refused = alone.one_by_one(self.connection, in_order, by_key=self.how.by_key)
            late = alone.refusal_at_the_end(self.connection)
            case = Case(self.table, self.how, in_order, refused, late, rows_of(self.connection))
        self.connection.commit()
        note(f"{before}\n{changes}\none by one refused: {refused}, late: {late}")
        error = self.written(changes)
        if error is None:
            letters = self.letters(in_order)
            note(f"letters: {letters}; rows: {rows_of(self.connection)}")
            self.judge_written(case, before, letters)
        else:
            note(f"refused: {error}")
            assert rows_of(self.connection) == before
            assert self.letters(in_order) == set()
            self.judge_refused(case, error)
        self.connection.commit()

    def numbered(self, drawn: list[Change]) -> tuple[list[Change], list[Change]]:
        """The changes as they come, each with its place in the order; and in their order."""
        self.seq += 1000
        changes = []
        for number, change in enumerate(drawn):
            drawn_place = 0 if self.how.order == "none" else change.seq // 3 * 20
            place = self.seq + drawn_place + (0 if self.how.order == "ties" else number)
            is_delete = change.gone and self.how.mode == "apply"
            changes.append(
                Change(change.id, seq=place, gone=True) if is_delete else change._replace(seq=place, gone=False)
            )
        # Changes of one place that are equal in all else cannot be told apart by their letters.
        changes = list(dict.fromkeys(changes))
        return changes, sorted(changes, key=lambda change: change.seq)

    def written(self, changes: list[Change]) -> PgonceError | psycopg.Error | None:
        """Write them as a commit does; the error, if they are refused."""
        names = [name for name in COLUMNS if name != "gone" or self.how.mode == "apply"]
        rows = typed_rows({name: COLUMNS[name] for name in names}, [change[: len(names)] for change in changes])
        keys = ("id",) if self.how.by_key else ()
        order_by = None if self.how.order == "none" else "seq"
        deletes = {"delete_when": "gone"} if self.how.mode == "apply" else {}
        where = destination("events", self.how.mode, keys, order_by, dead_letters=True, **deletes)
        try:
            write_batch_in_tx(self.connection, where, rows, batch=make_batch(), is_last=True)
        except (PgonceError, psycopg.Error) as error:
            self.connection.commit()
            return error
        self.connection.commit()
        return None

    def letters(self, changes: list[Change]) -> set[Change]:
        """The changes that were put aside."""
        found = self.connection.execute("DELETE FROM pgonce.dead_letters RETURNING row_data").fetchall()
        letters = {Change(**{"gone": False, **row}) for (row,) in found}
        assert len(letters) == len(found), "a row was put aside twice"
        assert set(letters) <= set(changes), "a letter is no row of the batch"
        return letters

    def judge_refused(self, case: Case, error: PgonceError | psycopg.Error) -> None:
        """The batch was refused, and that is right."""
        if isinstance(error, PgonceError):
            assert error.code in MAY_BE_REFUSED, error
            assert MAY_BE_REFUSED[error.code](case), error
            return
        why = alone.refusal(error)
        if why.code == "21000" and MAY_BE_REFUSED["DOUBLED_KEYS"](case):
            return
        # What is no row's fault stops the batch, but nothing else does.
        assert not why.is_of_row, error
        assert case.said(why), error

    def judge_written(self, case: Case, before: list[tuple], letters: set[Change]) -> None:
        """The batch was written, and its table and letters are right."""
        now = rows_of(self.connection)
        if not case.refused and case.late is None:
            assert letters == set()
            assert now == case.rows
            return
        for letter in letters:
            why = alone.refusal_of(self.connection, letter, by_key=self.how.by_key)
            assert why is not None, f"the table takes {letter}, which was put aside"
            assert why.is_of_row, f"{letter} was put aside, which is refused for no row's sake: {why}"
        rest = [change for change in case.changes if change not in letters]
        with undone(self.connection):
            left, left_out = self.left_by(before, rest)
        # Only the last of a key's changes counts. What is before one that a trigger leaves out may be there or not.
        unsure = {change.id for change in left_out}
        assert [row for row in now if row[0] not in unsure] == [row for row in left if row[0] not in unsure]

    def left_by(self, before: list[tuple], changes: list[Change]) -> tuple[list[tuple], list[Change]]:
        """What the changes leave in a copy (in the table, if deletes change other rows), and which are left out."""
        by_key, acts = self.how.by_key, self.table.acts and self.how.mode == "apply"
        table = "events" if acts else "copied"
        self.fill(before, table)
        if acts:
            # Rows of one statement may refer to each other.
            self.connection.execute(f"ALTER TABLE events ALTER CONSTRAINT of_parent {DEFERRED}".encode())
        elif by_key:
            self.connection.execute("ALTER TABLE copied ADD PRIMARY KEY (id)")
        refused = alone.one_by_one(self.connection, changes, by_key=by_key, table=table, again=acts)
        last = {change.id if by_key else change: change for change in changes}.values()
        lost = [change for change, why in refused.items() if why.code != LEFT_OUT and change in last]
        assert lost == [], "neither written nor put aside"
        return rows_of(self.connection, table), [change for change, why in refused.items() if why.code == LEFT_OUT]

    def fill(self, rows: list[tuple], table: str) -> None:
        """Let a table have these rows instead of its own, as a superuser, and without triggers and foreign keys."""
        self.connection.execute(
            f"RESET ROLE; SET LOCAL session_replication_role = replica; DELETE FROM {table}".encode()
        )
        names = "id, u, parent, name, amount, seq, extra"
        with self.connection.cursor() as cursor, cursor.copy(f"COPY {table} ({names}) FROM STDIN".encode()) as copy:
            for row in rows:
                copy.write_row(row[:7])
        self.connection.execute("SET LOCAL session_replication_role = origin")


def run(url: str, examples: int) -> None:
    """Write histories in the database of this URL."""
    role = f"pgonce_test_{secrets.token_hex(4)}"
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(STANDING.encode())
        admin.execute(
            f"CREATE ROLE {role}; GRANT USAGE, CREATE ON SCHEMA public TO {role};"
            f"GRANT USAGE ON SCHEMA pgonce TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA pgonce TO {role}".encode()
        )
        world = World(url, role)

        @settings(max_examples=examples, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
        @given(TABLES, HOWS, CHANGES, st.lists(CHANGES, min_size=1, max_size=2))
        def histories(table: Table, how: How, stored: list[Change], batches: list[list[Change]]) -> None:
            world.begin(table, how, stored)
            for batch in batches:
                world.batch(batch)

        try:
            histories()
        finally:
            world.connection.close()
            admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())


def test_what_a_batch_leaves_is_what_the_table_says_of_each_change(url):
    """A few histories, for every run of the tests."""
    run(url, 40)


def test_many_histories(url):
    """Many more of them."""
    run(url, EXAMPLES)
