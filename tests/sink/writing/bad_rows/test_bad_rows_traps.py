"""
Where a search for bad rows could go wrong: constraints that wait, rows in another order, errors that are nobody's.

Covers: sink.writing.bad_rows.about_a_row, sink.writing.bad_rows.in_turn, sink.writing.bad_rows.turns,
sink.writing.bad_rows.value_probe, sink.writing.bad_rows.write_what_fits, sink.writing.by_key.one_by_one.
"""

from __future__ import annotations

import random

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import letters
from support.batches import make_batch
from support.typed_rows import commit_typed, typed_rows
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import NOTHING, PgonceError
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.bad_rows import about_a_row

COLUMNS = {
    "id": t.LongType(), "u": t.StringType(), "parent": t.LongType(), "seq": t.LongType(), "gone": t.BooleanType(),
}  # fmt: skip
MODES = pytest.mark.parametrize("mode", ["append", "upsert", "apply"])
BY_KEY = pytest.mark.parametrize("mode", ["upsert", "apply"])
AT_ONCE = "CREATE TABLE events (id bigint PRIMARY KEY, u varchar(6) CONSTRAINT one_u UNIQUE, parent bigint, seq bigint)"
DEFERRED = AT_ONCE.replace("UNIQUE", "UNIQUE DEFERRABLE INITIALLY DEFERRED")
PLAIN = AT_ONCE.replace("CONSTRAINT one_u UNIQUE", "")


def batch_of(mode, rows, order_by="seq", **how):
    """How rows ``(id, u, parent, seq)`` are written, their columns, and they; those that delete have a fifth value."""
    keys, order_by = ((), None) if mode == "append" else (("id",), order_by)
    deletes = {"delete_when": "gone"} if mode == "apply" else {}
    where = destination("events", mode, keys, order_by, **{"dead_letters": True, **how, **deletes})
    width = 5 if mode == "apply" else 4
    return where, dict([*COLUMNS.items()][:width]), [(*row, False)[:width] for row in rows]


def commit(url, mode, rows, *args, **how):
    """Commit a batch whose bad rows are put aside."""
    return commit_typed(url, 0, *batch_of(mode, rows, *args, **how))


def write_in_tx(connection, mode, rows, **how):
    """Write a batch in a transaction of somebody else."""
    where, columns, rows = batch_of(mode, rows)
    write_batch_in_tx(connection, where, typed_rows(columns, rows), batch=make_batch(), **how)


def stored(admin, columns="id, u"):
    """The table's rows."""
    return admin.execute(f"SELECT {columns} FROM events ORDER BY 1".encode()).fetchall()


def refused(url, admin, mode, rows, *args, **how):
    """The code with which a batch is refused, of which nothing is written and nothing is put aside."""
    before = stored(admin, "*")
    with pytest.raises(PgonceError) as raised:
        commit(url, mode, rows, *args, **how)
    assert stored(admin, "*") == before
    assert letters(admin) == []
    return raised.value


class TestDeferredConstraints:
    """What is checked at the end of the transaction is not checked before."""

    @BY_KEY
    @pytest.mark.parametrize("order_by", [None, "seq"])
    @pytest.mark.parametrize("is_first", [False, True])
    @pytest.mark.parametrize(("bad", "code"), [("too long", "22001"), ("taken", "23505")])
    def test_values_are_exchanged_beside_a_bad_row(self, mode, order_by, is_first, bad, code, url, admin):
        """Neither of the two rows is put aside: what was checked after a part is deferred again for the next one."""
        admin.execute(DEFERRED)
        admin.execute("INSERT INTO events VALUES (1, 'a'), (2, 'b'), (4, 'taken')")
        exchanged, others = [(1, "b"), (2, "a")], [(5, bad), (6, "c")]
        rows = [*others, *exchanged] if is_first else [*exchanged, *others]
        commit(url, mode, [(*row, None, place) for place, row in enumerate(rows)], order_by)
        assert stored(admin) == [(1, "b"), (2, "a"), (4, "taken"), (6, "c")]
        assert letters(admin) == [(5, code)]

    @MODES
    def test_what_another_table_still_owes_is_left_alone(self, mode, url, admin):
        """Like the seal of a function's transaction: it is due at COMMIT, and not while rows are looked for."""
        admin.execute(DEFERRED)
        admin.execute(
            "INSERT INTO events VALUES (4, 'taken'); CREATE TABLE kept (id bigint PRIMARY KEY);"
            "CREATE TABLE promises (id bigint REFERENCES kept DEFERRABLE INITIALLY DEFERRED)"
        )
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO promises VALUES (1)")
            write_in_tx(connection, mode, [(5, "taken", None, 1), (6, "c", None, 2)], is_last=True)
            connection.execute("INSERT INTO kept VALUES (1)")
        assert stored(admin) == [(4, "taken"), (6, "c")]
        assert letters(admin) == [(5, "23505")]

    @MODES
    def test_a_child_waits_for_a_parent_of_a_later_table(self, mode, url, admin):
        """Where other tables follow, the target's own deferred constraints wait for them too."""
        admin.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
        admin.execute(AT_ONCE)
        admin.execute("ALTER TABLE events ADD FOREIGN KEY (parent) REFERENCES parents DEFERRABLE INITIALLY DEFERRED")
        with psycopg.connect(url) as connection:
            write_in_tx(connection, mode, [(1, "a", 7, 1), (2, "too long", None, 2)])
            connection.execute("INSERT INTO parents VALUES (7)")
        assert stored(admin) == [(1, "a")]
        assert letters(admin) == [(2, "22001")]


OF_A_TRIGGER = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF new.u = 'odd' THEN RAISE 'no' USING {}; END IF; RETURN new;
END $$; CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON events FOR EACH ROW EXECUTE FUNCTION refuse()
"""
AS_A_CHECK = "ERRCODE = '23514', SCHEMA = 'public', TABLE = 'events', CONSTRAINT = 'of_trigger'"


@pytest.mark.parametrize(("mode", "order_by"), [("append", None), ("upsert", None), ("apply", None), ("upsert", "seq")])
def test_children_may_come_before_their_parents(mode, order_by, url, admin):
    """Also where rows are tried in parts, because only a trigger tells which of them is bad."""
    admin.execute(PLAIN)
    admin.execute("ALTER TABLE events ADD FOREIGN KEY (parent) REFERENCES events")
    admin.execute(OF_A_TRIGGER.format(AS_A_CHECK).encode())
    tree = [*((n, "child", n + 1, n) for n in range(1, 12)), (12, "root", None, 12)]
    commit(url, mode, [*tree[:5], (20, "odd", None, 20), *tree[5:], (21, "lost", 99, 21)], order_by)
    assert [key for key, _ in stored(admin)] == [*range(1, 13)]
    assert letters(admin) == [(20, "23514"), (21, "23503")]


@BY_KEY
@pytest.mark.parametrize("order_by", [None, "seq"])
def test_a_value_moves_without_an_order(mode, order_by, url, admin):
    """Each key comes once, so that what the batch leaves does not depend on the order of its changes."""
    admin.execute(AT_ONCE)
    admin.execute("INSERT INTO events VALUES (1, 'a'), (2, 'b')")
    commit(url, mode, [(1, "b", None, 1), (2, "c", None, 1), (5, "too long", None, 1)], order_by)
    assert stored(admin) == [(1, "b"), (2, "c")]
    assert letters(admin) == [(5, "22001")]


@BY_KEY
def test_a_row_for_which_a_later_change_makes_room_is_written(mode, url, admin):
    """Another row is bad, so that the changes are written in their order; this one fits once all others are."""
    admin.execute(AT_ONCE)
    admin.execute("INSERT INTO events VALUES (1, 'a'), (2, 'b')")
    commit(url, mode, [(3, "b", None, 1), (2, "c", None, 2), (5, "a", None, 3)])
    assert stored(admin) == [(1, "a"), (2, "c"), (3, "b")]
    assert letters(admin) == [(5, "23505")]


def test_a_deleted_row_whose_parent_comes_later_is_gone(url, admin):
    """It was refused in its turn; nothing is wrong with its delete."""
    admin.execute(f"{PLAIN}; ALTER TABLE events ADD FOREIGN KEY (parent) REFERENCES events ON DELETE SET NULL")
    commit(url, "apply", [(3, "b", None, 3), (4, "a", 3, 1), (4, None, None, 2, True)])
    assert stored(admin) == [(3, "b")]


ELSEWHERE = "CREATE TABLE elsewhere (u text CHECK (u <> 'odd'), of bigint REFERENCES events); "
# What each has in its table, and the code with which a batch of it is refused.
NOBODYS = {
    "a missing partition": (
        f"DROP TABLE events; {PLAIN} PARTITION BY RANGE (id); "
        "CREATE TABLE few PARTITION OF events FOR VALUES FROM (0) TO (3)", "NO_PARTITION",
    ),
    "a sequence is used up": (
        "CREATE SEQUENCE few MAXVALUE 2; ALTER TABLE events ADD n int DEFAULT nextval('few')", "SEQUENCE_EXHAUSTED",
    ),
    "our encoding": (OF_A_TRIGGER.format("ERRCODE = '22P03'"), "VALUE_NOT_STORABLE"),
    "our format": (OF_A_TRIGGER.format("ERRCODE = '22P04'"), "VALUE_NOT_STORABLE"),
    "a trigger": (OF_A_TRIGGER.format("ERRCODE = 'P0001'"), "TARGET_FAILED"),
    "a trigger's value": (OF_A_TRIGGER.format("ERRCODE = '22001'"), "VALUE_NOT_STORABLE"),
    "a trigger's statement": (
        OF_A_TRIGGER.replace("RAISE 'no' USING {}", "INSERT INTO nowhere VALUES (1)"), "TARGET_MISSING",
    ),
    "a trigger's constraint": (OF_A_TRIGGER.format("ERRCODE = '23505'"), "UNIQUE_VIOLATION"),
    "a trigger's table": (
        ELSEWHERE + "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO elsewhere VALUES (new.u); RETURN NULL; END $$; "
        "CREATE TRIGGER note AFTER INSERT OR UPDATE ON events FOR EACH ROW EXECUTE FUNCTION note()", "CHECK_VIOLATION",
    ),
}  # fmt: skip


@MODES
@pytest.mark.parametrize("which", NOBODYS)
def test_the_batch_is_refused_and_nothing_is_put_aside(which, mode, url, admin):
    """With the error's own code."""
    made, code = NOBODYS[which]
    admin.execute(PLAIN)
    admin.execute(made.encode())
    rows = [(1, "a", None, 1), (2, "too long", None, 2), (3, "odd", None, 3), (4, "b", None, 4)]
    assert refused(url, admin, mode, rows).code == code


def test_a_row_whose_key_comes_twice_is_not_put_aside_for_another_table(url, admin):
    """The first row of the key is bad, so that the other one is tried by itself; what refuses it then is no row's."""
    admin.execute(f"{AT_ONCE}; INSERT INTO events VALUES (4, 'taken')")
    admin.execute(NOBODYS["a trigger's table"][0])
    rows = [(1, "taken", None, 1), (1, "odd", None, 2), (2, "b", None, 3)]
    assert refused(url, admin, "append", rows).code == "CHECK_VIOLATION"


def test_a_row_of_another_table_that_refers_to_a_deleted_one(url, admin):
    """The constraint is the other table's."""
    admin.execute(PLAIN)
    admin.execute(f"{ELSEWHERE} INSERT INTO events VALUES (1, 'a'); INSERT INTO elsewhere VALUES ('x', 1)".encode())
    rows = [(1, None, None, 1, True), (2, "b", None, 2), (3, "too long", None, 3)]
    assert refused(url, admin, "apply", rows).code == "FOREIGN_KEY_VIOLATION"


@pytest.mark.parametrize("action", ["NO ACTION", "RESTRICT"])
class TestRowsThatAreReferredTo:
    """A foreign key of the table to itself, which refuses a change by one code or by the other."""

    @pytest.fixture
    def code(self, action, admin):
        """The one that this Postgres has for it."""
        # Of RESTRICT, Postgres 18 says so by a code of its own.
        return "23503" if action == "NO ACTION" or admin.info.server_version < 180000 else "23001"

    @pytest.fixture
    def tree(self, action, admin):
        """Node 2 hangs on node 1."""
        admin.execute(f"{PLAIN}; ALTER TABLE events ADD FOREIGN KEY (parent) REFERENCES events ON DELETE {action}")
        admin.execute("INSERT INTO events VALUES (1, 'a', NULL), (3, 'c', NULL), (2, 'b', 1)")

    def test_one_that_moves_away_lets_its_parent_go(self, code, tree, url, admin):
        """In one batch, as one by one."""
        commit(url, "apply", [(2, "b", 3, 1), (1, None, None, 2, True)])
        assert stored(admin, "id, parent") == [(2, 3), (3, None)]
        assert letters(admin) == []

    def test_the_delete_of_one_is_put_aside(self, code, tree, url, admin):
        """Among good rows."""
        commit(url, "apply", [(5, "c", None, 1), (1, None, None, 2, True), (6, "d", None, 3)])
        assert [key for key, _ in stored(admin)] == [1, 2, 3, 5, 6]
        assert letters(admin) == [(1, code)]

    def test_another_value_of_one_is_put_aside(self, action, code, url, admin):
        """By an upsert; the row keeps its value, because others have it."""
        admin.execute(AT_ONCE)
        admin.execute(
            "ALTER TABLE events ADD of varchar(6) DEFAULT 'a';"
            f"ALTER TABLE events ADD FOREIGN KEY (of) REFERENCES events (u) ON UPDATE {action};"
            "INSERT INTO events VALUES (1, 'a'), (9, 'z')".encode()
        )
        commit(url, "upsert", [(1, "new", None, 1), (2, "b", None, 2)])
        assert stored(admin) == [(1, "a"), (2, "b"), (9, "z")]
        assert letters(admin) == [(1, code)]


LONG = random.Random(1).randbytes(20_000).hex()
WORDS = " ".join(f"word{number}" for number in range(160_000))
TOO_LARGE = {
    "an index": ("u text); CREATE INDEX ON events (u)", LONG, "54000"),
    "a generated column": ("u text, v tsvector GENERATED ALWAYS AS (to_tsvector('simple', u)) STORED)", WORDS, "54000"),
    "nested JSON": ("u json)", "[" * 50_000 + "]" * 50_000, "54001"),
}  # fmt: skip


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("which", TOO_LARGE)
def test_a_value_that_is_too_large_for_what_is_made_of_it(which, mode, url, admin):
    """Its row is put aside: tried by itself it is refused in the same way."""
    made, value, code = TOO_LARGE[which]
    admin.execute(f"CREATE TABLE events (id bigint PRIMARY KEY, parent bigint, seq bigint, {made}".encode())
    commit(url, mode, [(1, "[1]", None, 1), (2, value, None, 2), (3, "[3]", None, 3)])
    assert [key for (key,) in stored(admin, "id")] == [1, 3]
    assert letters(admin) == [(2, code)]


# A transaction with many ids makes reads of others slow: more than 64 subtransactions do not fit into shared memory.
MOST_IDS, ROWS, BAD = 30, 2_000, 10
REFUSING = {
    "a type": ("append", PLAIN, "too long"),
    "a constraint": ("append", AT_ONCE, "twice"),
    "a deferred constraint": ("append", DEFERRED, "twice"),
    "an exclusion constraint": (
        "append", f"{PLAIN}; ALTER TABLE events ADD EXCLUDE (u WITH =) DEFERRABLE INITIALLY DEFERRED", "twice"
    ),
    "a trigger": ("append", f"{PLAIN}; {OF_A_TRIGGER.format(AS_A_CHECK)}", "odd"),
    "a type, by key": ("upsert", PLAIN, "too long"),
    "a constraint, by key": ("upsert", AT_ONCE, "twice"),
    "a trigger, by key": ("upsert", f"{PLAIN}; {OF_A_TRIGGER.format(AS_A_CHECK)}", "odd"),
    "a constraint, and a value that moves": ("apply", f"{AT_ONCE}; INSERT INTO events VALUES (1, '7')", "twice"),
}  # fmt: skip


@pytest.mark.parametrize("which", REFUSING)
def test_a_bad_row_takes_few_transaction_ids(which, url, admin):
    """However it is found."""
    mode, table, value = REFUSING[which]
    admin.execute(table.encode())
    rows = [(n, value if n % (ROWS // BAD) == 0 else str(n), None, n) for n in range(1, ROWS + 1)]
    (before,) = admin.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    commit(url, mode, rows)
    (after,) = admin.execute("SELECT pg_current_xact_id()::text::bigint").fetchone()
    bad = BAD - (value == "twice")
    assert len(letters(admin)) == bad
    assert len(stored(admin)) == ROWS - bad
    assert (after - before) / bad <= MOST_IDS


@pytest.mark.parametrize(
    ("which", "sqlstate"),
    [
        ("a type", "22001"),
        ("a deferred constraint", "23505"),
        ("a trigger, by key", "23514"),
        ("a constraint, and a value that moves", "23505"),
    ],
)
def test_a_search_ends(which, sqlstate, url, admin, monkeypatch):
    """By its time, and nothing is written. The error says what Postgres has refused, and what to do."""
    monkeypatch.setattr(about_a_row, "MOST_SECONDS", -1)
    mode, table, value = REFUSING[which]
    admin.execute(table.encode())
    rows = [(n, value if n % 20 == 19 else str(n), None, n) for n in range(100)]
    error = refused(url, admin, mode, rows)
    assert error.code == "SEARCH_TOO_LONG"
    for said in ("public.events", sqlstate, NOTHING, "maxOffsetsPerTrigger"):
        assert said in str(error)
