"""
Tables that refuse rows in many ways, changes of their rows, and what Postgres says of each change by itself.

Runs in: pytest. Invariant: nothing here runs the product's code. Each change is one statement of psycopg in a savepoint
of its own, and what is deferred is checked after the last of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import psycopg
from hypothesis import strategies as st
from psycopg import sql

DEFERRED = "DEFERRABLE INITIALLY DEFERRED"
# Of the table, or of a partition: a partitioned one cannot have it without the column that chooses the partition.
UNIQUES = (
    "ALTER TABLE {} ADD CONSTRAINT one_u UNIQUE (u)",
    "ALTER TABLE {} ADD CONSTRAINT one_u UNIQUE (u) DEFERRABLE",
    f"ALTER TABLE {{}} ADD CONSTRAINT one_u UNIQUE (u) {DEFERRED}",
    "ALTER TABLE {} ADD CONSTRAINT one_u UNIQUE (u, amount)",
    "ALTER TABLE {} ADD CONSTRAINT apart EXCLUDE USING gist (int8range(u, u + 2) WITH &&)",
    f"ALTER TABLE {{}} ADD CONSTRAINT apart EXCLUDE USING gist (int8range(u, u + 2) WITH &&) {DEFERRED}",
    "CREATE UNIQUE INDEX ON {} (abs(u)) WHERE u < 6",
)
ACTIONS = ("NO ACTION", "RESTRICT", "CASCADE", "SET NULL", "SET DEFAULT")
# What a trigger does before it returns the row.
DROPS = "IF new.name = 'odd' THEN RETURN NULL; END IF;"
CHANGING = ("IF new.name IS NULL THEN new.name := 'full'; END IF;", "IF new.u = 5 THEN new.u := 4; END IF;", DROPS)
RAISES = "IF new.name = 'odd' THEN RAISE 'no'; END IF;"
AS_TYPE = RAISES.replace("'no'", "'no' USING ERRCODE = '22001'")
AS_CHECK = RAISES.replace(
    "'no'", "'no' USING ERRCODE = '23514', SCHEMA = 'public', TABLE = 'events', CONSTRAINT = 'of_trigger'"
)
LEFT_OUT = "left out"


class Change(NamedTuple):
    """A row as the source sends it; ``seq`` is its place in the order. One that deletes has nothing but a key."""

    id: int
    u: int | None = None
    parent: int | None = None
    name: str | None = None
    amount: int | None = None
    seq: int = 0
    gone: bool = False


@dataclass(frozen=True)
class Table:
    """What the table ``events`` has that may refuse, change or leave out a row."""

    unique: str
    refers_to: str
    action: str
    timing: str
    before: str
    after: str
    is_late: bool
    more: str
    name: str
    partitions: str
    secured: bool
    referred: bool

    @property
    def acts(self) -> bool:
        """Whether a delete changes other rows of the table."""
        return self.refers_to == "events" and self.action in ACTIONS[2:]

    @property
    def is_secured(self) -> bool:
        """Whether policies are in force; not where one cannot tell what actions and policies leave together."""
        return self.secured and not self.acts

    def statements(self) -> Iterator[str]:
        """Create the table, and a copy that refuses a row for its own values alone."""
        columns = (
            f"id bigint, u bigint, parent bigint DEFAULT 1, name {self.name}, amount smallint, seq bigint {self.more}"
        )
        parted = "PARTITION BY RANGE (id)" if self.partitions else ""
        yield "DROP TABLE IF EXISTS items, events, copied CASCADE"
        yield f"CREATE TABLE copied ({columns})"
        yield f"CREATE TABLE events ({columns}, PRIMARY KEY (id)) {parted}"
        if self.partitions:
            yield f"CREATE TABLE events_low PARTITION OF events FOR VALUES FROM (0) TO (6); {self.partitions}"
        yield self.unique.format("events_low" if self.partitions else "events")
        if self.refers_to:
            of = f"{self.refers_to} ON DELETE {self.action} {self.timing}"
            yield f"ALTER TABLE events ADD CONSTRAINT of_parent FOREIGN KEY (parent) REFERENCES {of}"
        if self.before:
            yield _function("goes_before", self.before)
            for table in ("events", "copied") if self.before in CHANGING else ("events",):
                yield f"CREATE TRIGGER goes_before BEFORE {_EACH.format(table, '', 'goes_before')}"
        if self.after:
            yield _function("comes_after", self.after)
            kind, timing = ("CONSTRAINT TRIGGER", DEFERRED) if self.is_late else ("TRIGGER", "")
            yield f"CREATE {kind} comes_after AFTER {_EACH.format('events', timing, 'comes_after')}"
        if self.referred:
            yield "CREATE TABLE items (node bigint REFERENCES events)"
        if self.is_secured:
            yield "ALTER TABLE events ENABLE ROW LEVEL SECURITY"
            yield "CREATE POLICY looks ON events FOR SELECT USING (true)"
            yield "CREATE POLICY adds ON events FOR INSERT WITH CHECK (name IS DISTINCT FROM 'odd')"
            yield "CREATE POLICY changes ON events FOR UPDATE USING (id <> 2) WITH CHECK (true)"
            yield "CREATE POLICY removes ON events FOR DELETE USING (id <> 3)"
        yield "GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC"


_EACH = "INSERT OR UPDATE ON {} {} FOR EACH ROW EXECUTE FUNCTION {}()"


def _function(name: str, does: str) -> str:
    return f"CREATE OR REPLACE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN {does} RETURN new; END$$"


TABLES = st.builds(
    Table,
    unique=st.sampled_from(["", *UNIQUES]),
    refers_to=st.sampled_from(["", "", "parents", "events", "events"]),
    action=st.sampled_from(ACTIONS),
    timing=st.sampled_from(["", "", DEFERRED]),
    before=st.sampled_from(["", "", "", "", *CHANGING, RAISES, AS_TYPE, AS_CHECK]),
    after=st.sampled_from(["", "", "", RAISES, AS_CHECK, "INSERT INTO log VALUES (new.name);"]),
    is_late=st.booleans(),
    more=st.sampled_from(
        [", extra int DEFAULT 0"] * 2
        + [", extra int DEFAULT 0, times smallint GENERATED ALWAYS AS (amount * 1000) STORED"]
    ),
    name=st.sampled_from(["varchar(4)", "varchar(4) NOT NULL", "varchar(4) CONSTRAINT no_no CHECK (name <> 'no')"]),
    partitions=st.sampled_from(["", "", "", "", "SELECT", "CREATE TABLE events_high PARTITION OF events DEFAULT"]),
    secured=st.sampled_from([False, False, False, True]),
    referred=st.sampled_from([False, False, False, True]),
)
CHANGES = st.lists(
    st.builds(
        Change,
        id=st.sampled_from([1, 2, 3, 4, 5, 6]),
        u=st.sampled_from([1, 2, 3, 4, 5, 6, None]),
        parent=st.sampled_from([None, None, 1, 2, 3, 4]),
        name=st.sampled_from(["a", "b", "a", "b", "a", "b", "a", "b", "no", "odd", "too long", None]),
        # 40 times 1,000 is more than the generated column takes.
        amount=st.sampled_from([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4, 40, 40_000]),
        seq=st.integers(0, 9),
        gone=st.sampled_from([False, False, True]),
    ),
    min_size=1,
    max_size=8,
)
# What every history finds.
STANDING = """
CREATE TABLE parents (id bigint PRIMARY KEY);
INSERT INTO parents VALUES (1), (2), (3);
CREATE TABLE log (what text CONSTRAINT no_odd CHECK (what <> 'odd'));
"""


class Refusal(NamedTuple):
    """Why a change was refused, and whether it is for the row's own sake."""

    code: str
    table: str
    is_of_row: bool


def refusal(error: psycopg.Error) -> Refusal:
    """What an error says. Those of triggers say "no", and are about a row only if they name the table."""
    code, table = error.sqlstate or "", error.diag.table_name or ""
    named = error.diag.column_name or error.diag.constraint_name
    if code.startswith("22"):
        return Refusal(code, table, error.diag.message_primary != "no")
    return Refusal(code, table, code.startswith("23") and table.startswith(("events", "copied")) and bool(named))


def statement(change: Change, table: str, *, by_key: bool) -> sql.Composed:
    """What a change does."""
    of = sql.Identifier(table)
    if change.gone:
        return sql.SQL("DELETE FROM {} WHERE id = {}").format(of, change.id)
    values = sql.SQL(", ").join(change[:-1])
    insert = sql.SQL("INSERT INTO {} (id, u, parent, name, amount, seq) VALUES ({})").format(of, values)
    if not by_key:
        return insert
    return sql.SQL(
        "{} ON CONFLICT (id) DO UPDATE SET u = excluded.u, parent = excluded.parent, name = excluded.name, "
        "amount = excluded.amount, seq = excluded.seq"
    ).format(insert)


def one_by_one(
    connection: psycopg.Connection,
    changes: Sequence[Change],
    *,
    by_key: bool,
    table: str = "events",
    again: bool = False,
) -> dict[Change, Refusal]:
    """Make each change in its turn (and ``again`` after the others); those that were refused or changed nothing."""
    refused: dict[Change, Refusal] = {}
    for change in changes:
        try:
            with connection.transaction():
                done = connection.execute(statement(change, table, by_key=by_key)).rowcount
        except psycopg.Error as error:
            refused[change] = refusal(error)
            continue
        if not done and (not change.gone or any(row[0] == change.id for row in rows_of(connection, table))):
            refused[change] = Refusal(LEFT_OUT, "", is_of_row=False)
    if again and 0 < len(refused) < len(changes):
        # It would come after a later change of its key, which was made.
        followed = {
            change: why
            for change, why in refused.items()
            if by_key
            and any(one.id == change.id and one not in refused for one in changes[changes.index(change) + 1 :])
        }
        waiting = [change for change in refused if change not in followed]
        return {**followed, **one_by_one(connection, waiting, by_key=by_key, table=table, again=True)}
    return refused


def refusal_at_the_end(connection: psycopg.Connection) -> Refusal | None:
    """Why what is deferred refuses the transaction."""
    try:
        with connection.transaction():
            connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except psycopg.Error as error:
        return refusal(error)
    return None


def refusal_of(connection: psycopg.Connection, change: Change, *, by_key: bool) -> Refusal | None:
    """Why the table as it stands refuses one more change, or would without its triggers; None if it takes it."""
    with undone(connection):
        refused = one_by_one(connection, [change], by_key=by_key).get(change) or refusal_at_the_end(connection)
    if refused is None or refused.is_of_row:
        return refused
    with undone(connection):
        connection.execute("RESET ROLE; ALTER TABLE events DISABLE TRIGGER USER")
        by_itself = one_by_one(connection, [change], by_key=False, table="copied").get(change)
        others = one_by_one(connection, [change], by_key=by_key).get(change) or refusal_at_the_end(connection)
        return next((why for why in (by_itself, others) if why and why.is_of_row), refused)


@contextmanager
def undone(connection: psycopg.Connection) -> Iterator[None]:
    """Undo what is done meanwhile."""
    with connection.transaction() as tried:
        yield
        raise psycopg.Rollback(tried)


def rows_of(connection: psycopg.Connection, table: str = "events") -> list[tuple[Any, ...]]:
    """The table's rows, in order."""
    return sorted(connection.execute(sql.SQL("TABLE {}").format(sql.Identifier(table))).fetchall(), key=str)
