"""
The table holds what the changes would leave one by one, however they are cut into batches.

Runs in: pytest. Invariant: after every batch the table equals a model that is :func:`one_by_one`; each row of a batch
is counted once. Hypothesis chooses the changes, the batches and what is sent again; Postgres and the statements are
real. ``PGONCE_MODEL_EXAMPLES=5000 pytest tests/sink/writing/by_key/test_apply_machine.py -m thorough`` runs longer.

Covers: sink.writing.by_key.apply, sink.writing.by_key.change_table, sink.writing.by_key.deciding_changes,
sink.writing.by_key.write_changes, sink.writing.by_key.tombstone_sets, sink.writing.by_key.tombstones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from typing import NamedTuple
from unittest.mock import patch

import psycopg
from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from psycopg import sql
from pyspark.sql import types as t
from support.applied_changes import apply, changes
from support.histories import live_through

from pgonce.sink.writing.by_key import upsert

EXAMPLES = int(os.environ.get("PGONCE_MODEL_EXAMPLES", "400"))
UNREAD = "?"
BAD = 10
STRUCT = changes(
    "pgonce_deleted",
    id=t.LongType(), region=t.StringType(), name=t.StringType(), first=t.LongType(), seq=t.IntegerType(),
    pgonce_before=t.StringType(),
)  # fmt: skip
TABLES = [
    "CREATE TABLE {name} (id bigint, region varchar(3), name text, first bigint CHECK (first <> 10), seq bigint, "
    "gone_at {deleted}, extra int DEFAULT 0, PRIMARY KEY ({keys})) {partitions}".format(
        name=f"events_{keys.count(',')}_{deleted}_{bool(partitions)}", keys=keys, deleted=deleted, partitions=partitions
    )
    for keys in ("id", "region, id")
    for deleted in ("boolean", "timestamptz")
    for partitions in ("", "PARTITION BY LIST (id)")
]
# All that a row has comes from the changes, so that one MERGE may write and delete.
WHOLE = "whole"
TABLES += [
    f"CREATE TABLE events_{keys.count(',')}_{WHOLE} "
    f"(id bigint, region text, name text, first bigint, seq bigint, PRIMARY KEY ({keys}))"
    for keys in ("id", "region, id")
]


class Change(NamedTuple):
    """What the source says of one key; a row that moved had the key ``old`` before."""

    id: int
    region: str
    name: str | None
    first: int
    seq: int
    gone: bool
    old: tuple[int, str] | None = None

    @property
    def sent(self) -> tuple:
        """The columns as they are sent; the record's key, which shows that the old key is no other row's, is ``id``."""
        row = dict(zip(("id", "region"), self.old or (), strict=False))
        before = {"row": row, "key": {"id": self.id}} if self.old else None
        return (*self[:5], before and json.dumps(before), self.gone)

    def key(self, how: How) -> tuple:
        """The key, as the table has it."""
        return tuple(getattr(self, name) for name in how.keys)

    def old_key(self, how: How) -> tuple | None:
        """The key before, if it was another one."""
        old = self.old and tuple(dict(zip(("id", "region"), self.old, strict=True))[name] for name in how.keys)
        return None if old == self.key(how) or how.deletes == "ignore" else old


class How(NamedTuple):
    """The options, and how the changes come: in order, in order but again and again, or in no order."""

    coming: str
    keys: tuple[str, ...]
    deletes: str
    keep: bool
    update_columns: tuple[str, ...]
    diverts: bool
    table: str


class Row(NamedTuple):
    """A row of the table without its key."""

    name: str | None
    first: int
    seq: int
    gone: bool
    extra: int


def lacks_its_row(row: Row | None, change: Change, how: How) -> bool:
    """Whether the change leaves out a value that no row of its key has: it is put aside."""
    return how.keep and not change.gone and change.name == UNREAD and row is None


def of_key(change: Change, how: How) -> list[Change]:
    """A change as those of single keys: one that moves a row deletes it, and writes it again."""
    if change.old_key(how) is None:
        return [change]
    number, region = change.old or (0, "")
    return [change._replace(id=number, region=region, gone=True, old=None), change._replace(old=None)]


def newest(table: dict, stones: dict, changes: Iterable[Change], how: How) -> None:
    """The model where only newer changes count: newer than the row, and than the delete of its key."""
    ordered = sorted(changes, key=lambda change: change.seq)
    for change in (one for each in ordered if each.first != BAD or each.gone for one in of_key(each, how)):
        key = change.key(how)
        row, stone = table.get(key), stones.get(key, -1)
        if change.seq < stone or (row and change.seq < row.seq):
            continue
        before = dict(table)
        one_by_one(table, [change], how)
        if change.gone and how.deletes != "ignore" and (how.deletes == "hard" or key not in before):
            stones[key] = change.seq


def one_by_one(table: dict, changes: Iterable[Change], how: How) -> dict:
    """The model: what each change does to the table, one after the other."""
    only = how.update_columns or ("name", "first", "seq")
    for change in changes:
        if change.first == BAD and not change.gone:
            continue
        if change.old_key(how):
            one_by_one(table, of_key(change, how), how)
            continue
        key = change.key(how)
        row = table.get(key)
        if lacks_its_row(row, change, how):
            continue
        if change.gone and how.deletes == "hard":
            table.pop(key, None)
        elif change.gone:
            if row and how.deletes == "soft":
                table[key] = row._replace(gone=True, seq=change.seq if how.coming != "in order" else row.seq)
        else:
            new = row._asdict() if row else {"name": None, "extra": 0}
            names = ("name", "first", "seq") if not row else {*only, "seq"} if how.coming != "in order" else only
            new |= {n: getattr(change, n) for n in names if not (n == "name" and how.keep and change.name == UNREAD)}
            table[key] = Row(**{**new, "gone": False})
    return table


HOWS = st.builds(
    How,
    coming=st.sampled_from(["in order", "again", "in no order"]),
    keys=st.sampled_from([("id",), ("id", "region")]),
    deletes=st.sampled_from(["hard", "hard", "soft", "ignore"]),
    keep=st.booleans(),
    update_columns=st.sampled_from([(), (), ("name",), ("seq", "first")]),
    diverts=st.booleans(),
    table=st.sampled_from(["boolean_False", "timestamptz_False", "boolean_True", WHOLE, WHOLE]),
)
CHANGES = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["long", "other", UNREAD, None]),
        st.integers(1, BAD),
        st.sampled_from([False, False, True]),
        st.none() | st.none() | st.tuples(st.integers(1, 3), st.sampled_from(["a", "b"])),
    ),
    min_size=1,
    max_size=8,
)
TRANSPORTS = st.sampled_from(["inline", "inline", "staged", "both"])


class Changing(RuleBasedStateMachine):
    """A source's changes on their way into one table."""

    url = ""

    @initialize(how=HOWS)
    def begin(self, how: How) -> None:
        """An empty table of the drawn kind."""
        if how.coming == "in no order":
            # What is inserted is that of the first change.
            how = how._replace(update_columns=())
        if how.keep or how.update_columns:
            # A value that a bad row has may stand for one that a later row does not have, or does not update.
            how = how._replace(diverts=False)
        if how.table == WHOLE:
            # It has no column for a soft delete, and no CHECK.
            how = how._replace(deletes="hard", diverts=False)
        self.how, self.feed, self.read, self.stones = how, [], 0, {}
        self.model: dict = {}
        self.source: set = set()
        self.name = self.called = f"events_{len(how.keys) - 1}_{how.table}".lower()
        self.connection = psycopg.connect(self.url)
        self.connection.execute(
            f"TRUNCATE {self.name}, pgonce.tombstones, pgonce.tombstone_sets, pgonce.dead_letters".encode()
        )
        self.connection.commit()
        note(how)

    def teardown(self) -> None:
        """Each history has a session of its own."""
        if hasattr(self, "connection"):
            if self.called != self.name:
                self.connection.rollback()
                self.renamed(self.name)
            self.connection.close()

    @rule(changes=CHANGES)
    def happen(self, changes: list) -> None:
        """The source changes."""
        for i, region, name, first, gone, old in changes:
            change = Change(
                i, region, None if gone else name, first if self.how.diverts else 1, len(self.feed), gone,
                None if gone else old,
            )  # fmt: skip
            key, old_key = change.key(self.how), change.old_key(self.how)
            if change.old_key(self.how._replace(deletes="hard")) and name == UNREAD:
                # Such a change is refused.
                change = change._replace(name="long")
            if change.old_key(self.how) and change.first == BAD:
                # If a later change of its key replaces it, nobody looks at its values, and the old row goes.
                change = change._replace(first=1)
            self.source = self.source - {old_key, key} if gone else self.source - {old_key} | {key}
            self.feed.append(change)

    @rule(size=st.integers(1, 12), back=st.integers(0, 20), transport=TRANSPORTS, by_part=st.booleans())
    def write(self, size: int, back: int, transport: str, *, by_part: bool) -> None:
        """A batch that goes on where the last one ended, or begins before that if the table keeps what is newer."""
        start = self.read if self.how.coming == "in order" else max(0, self.read - back)
        self.publish(range(start, min(start + size, len(self.feed))), transport, by_part=by_part)

    @precondition(lambda self: self.how.coming == "in no order")
    @rule(data=st.data(), transport=TRANSPORTS, by_part=st.booleans())
    def write_any(self, data: st.DataObject, transport: str, *, by_part: bool) -> None:
        """A batch of any changes, in any order, that came before or did not."""
        numbers = st.lists(st.integers(0, len(self.feed) - 1), max_size=10, unique=True) if self.feed else st.just([])
        self.publish(data.draw(numbers), transport, by_part=by_part)

    @precondition(lambda self: self.how.coming != "in order")
    @rule(name=st.sampled_from(["moved", 'mo"ved.again']))
    def renamed(self, name: str) -> None:
        """The table gets another name, and later on its own again; it is the same table."""
        now = sql.Identifier(self.name if self.called != self.name else name)
        rename = sql.SQL("ALTER TABLE {} RENAME TO {}").format(sql.Identifier(self.called), now)
        self.connection.execute(rename)
        self.connection.commit()
        self.called = self.name if self.called != self.name else name

    @precondition(lambda self: self.how.coming != "in no order" and self.how.table != WHOLE)
    @rule()
    def another_writes(self) -> None:
        """A column that the feed does not have is written by somebody else."""
        update = sql.SQL("UPDATE {} SET extra = extra + 1").format(sql.Identifier(self.called))
        self.connection.execute(update)
        self.connection.commit()
        self.model = {key: row._replace(extra=row.extra + 1) for key, row in self.model.items()}

    def publish(self, numbers: Iterable[int], transport: str, *, by_part: bool = False) -> None:
        """Write a batch, by its table or by the partition that all its rows are in, and look at the table."""
        numbers = list(numbers)
        if not numbers:
            return
        how = self.how
        changes = [self.feed[n] for n in numbers]
        bad = {
            number for number, change in zip(numbers, changes, strict=True) if change.first == BAD and not change.gone
        }
        if len(bad) == len(numbers) > 1:
            # A batch of which no row can be written stops the query.
            return
        if how.keep and how.update_columns and self.lacks_rows(changes):
            # A column that updates leave alone has what the first change says, though that is put aside by itself.
            return
        if how.keep:
            bad |= {number for number, change in zip(numbers, changes, strict=True) if change.name == UNREAD}
        with patch.object(upsert, "MERGED_ROWS", 0 if how.table == WHOLE else upsert.MERGED_ROWS):
            counts = apply(
                self.connection,
                *(change.sent for change in changes),
                struct=STRUCT,
                delete_when=None,
                change_feed="debezium",
                transport=transport,
                table=self.part_of(changes) if by_part else sql.Identifier(self.called).as_string(None),
                keys=how.keys,
                deletes="soft:gone_at" if how.deletes == "soft" else how.deletes,
                only_newer=how.coming != "in order",
                update_columns=how.update_columns,
                keep_where=UNREAD if how.keep else None,
                dead_letters=how.diverts or how.keep,
            )
        found = self.connection.execute(
            "DELETE FROM pgonce.dead_letters RETURNING (row_data ->> 'seq')::int"
        ).fetchall()
        assert {seq for (seq,) in found} <= bad
        assert len(found) == counts.get("dead_letters", 0)
        self.connection.commit()
        if how.coming == "in order":
            self.model = one_by_one(self.model, changes, how)
        else:
            newest(self.model, self.stones, changes, how)
        self.read = max(self.read, numbers[-1] + 1)
        note(f"{numbers} by {transport}: {counts}")
        self.compare()

    def part_of(self, changes: list[Change]) -> str:
        """The partition of these rows, or the table if they are in several, or it has none."""
        parts = {0 if number == 1 else 1 for c in changes for number in (c.id, *(c.old or ())[:1])}
        is_parted = self.how.table.endswith("True") and len(parts) == 1
        return f"{self.name}_{parts.pop()}" if is_parted else sql.Identifier(self.called).as_string(None)

    def lacks_rows(self, changes: Iterable[Change]) -> bool:
        """Whether a change leaves out a value that no row of its key has when its turn comes."""
        table = dict(self.model)
        for change in sorted(changes, key=lambda change: change.seq):
            if lacks_its_row(table.get(tuple(getattr(change, name) for name in self.how.keys)), change, self.how):
                return True
            one_by_one(table, [change], self.how)
        return False

    def compare(self) -> None:
        """A soft delete of a row that was never seen cannot leave one."""
        keys = ", ".join(self.how.keys)
        others = "coalesce(gone_at::text NOT IN ('f', 'false'), false), extra"
        if self.how.table == WHOLE:
            others = "false, 0"
        query = f"SELECT {keys}, name, first, seq, {others} FROM {{}}"
        rows = self.connection.execute(sql.SQL(query).format(sql.Identifier(self.called))).fetchall()
        key = len(self.how.keys)
        found = {row[:key]: Row(*row[key:]) for row in rows}
        self.connection.commit()
        expected = self.model
        if self.how.coming == "in no order":
            found, expected = ({k: r for k, r in rows.items() if not r.gone} for rows in (found, expected))
        assert found == expected


def run(url: str, examples: int) -> None:
    """Write histories in the database of this URL."""
    with psycopg.connect(url, autocommit=True) as admin:
        for table in TABLES:
            admin.execute(table.encode())
            if "PARTITION" in table:
                name = table.split()[2]
                for n, bounds in enumerate(("IN (1)", "IN (2, 3)")):
                    admin.execute(f"CREATE TABLE {name}_{n} PARTITION OF {name} FOR VALUES {bounds}".encode())

    live_through(Changing, examples, 12, url=url)


def test_batches_leave_what_the_changes_leave_one_by_one(url):
    """A few histories, for every run of the tests."""
    run(url, 25)


def test_the_table_holds_in_many_more_histories(url):
    """Many more of them."""
    run(url, EXAMPLES)
