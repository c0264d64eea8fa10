"""
Rows are written one after the other where what one statement for all would do is not what they say.

Covers: sink.writing.bad_rows.in_turn, sink.writing.bad_rows.turns, sink.writing.by_key.keys.
"""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from psycopg.errors import ExclusionViolation, ForeignKeyViolation, UniqueViolation
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes, letters, stored
from support.batches import make_planned_batch
from support.routed_rows import commit, routes
from support.sent_rows import publish
from support.typed_rows import typed_rows
from support.with_rooms import look_once

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination

UNIQUE = changes(id=t.LongType(), u=t.LongType(), seq=t.LongType())
UPSERT = t.StructType(UNIQUE.fields[:3])
NODES = changes(id=t.LongType(), parent=t.LongType(), name=t.StringType(), seq=t.LongType())


@pytest.fixture
def events(admin):
    """A table with two unique columns, and two rows."""
    admin.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, u bigint, seq bigint, CONSTRAINT one_u UNIQUE (u));"
        "INSERT INTO events VALUES (1, 1, 0), (2, 2, 0)"
    )


class TestMovedValues:
    """A value that a constraint allows once moves from one row to another."""

    @pytest.mark.parametrize(("dead_letters", "transport"), [(None, "staged"), (True, "inline")])
    @pytest.mark.parametrize("mode", ["upsert", "apply"])
    def test_both_rows_are_written(self, mode, dead_letters, transport, url, admin, events):
        """The changes have an order, in which the value is free when the other row takes it."""
        rows = [(2, 3, 1), (1, 2, 2), (3, 1, 3)]
        if mode == "apply":
            counts = apply(
                url, *((*row, WRITE) for row in rows), struct=UNIQUE, dead_letters=dead_letters, transport=transport
            )
            assert counts == {"written": 3}
        else:
            publish(url, transport, UPSERT, rows, "upsert", order_by="seq", dead_letters=dead_letters)
        assert stored(admin) == [(1, 2, 2), (2, 3, 1), (3, 1, 3)]
        assert letters(admin) == []

    def test_only_the_row_that_is_refused_in_its_turn_is_put_aside(self, url, admin, events):
        """One value moves, and another one is taken for good by a row that the batch leaves alone."""
        admin.execute("INSERT INTO events VALUES (7, 7, 0), (8, 8, 0)")
        rows = [(1, 2, 2, WRITE), (2, 3, 1, WRITE), (5, 7, 3, WRITE), (6, 6, 4, WRITE), (9, 8, 5, WRITE)]
        assert apply(url, *rows, struct=UNIQUE, dead_letters=True) == {"written": 3, "dead_letters": 2}
        assert stored(admin) == [(1, 2, 2), (2, 3, 1), (6, 6, 4), (7, 7, 0), (8, 8, 0)]
        assert letters(admin) == [(5, "23505"), (9, "23505")]

    def test_a_soft_delete_that_is_refused_is_put_aside(self, url, admin):
        """Nothing has moved: the mark gives the row the values of one that was marked before."""
        admin.execute(
            "CREATE TABLE events (id bigint PRIMARY KEY, u bigint, seq bigint, del bool DEFAULT false);"
            "ALTER TABLE events ADD UNIQUE (u, del);"
            "INSERT INTO events VALUES (1, 1, 0, true), (2, 1, 0, false), (4, 4, 0, false)"
        )
        rows = [(3, 3, 1, WRITE), (2, None, 2, DELETE), (4, None, 3, DELETE)]
        how = {"struct": UNIQUE, "deletes": "soft:del"}
        with pytest.raises(UniqueViolation, match="events_u_del_key"):
            apply(url, *rows, **how)
        assert apply(url, *rows, dead_letters=True, **how) == {"written": 1, "deleted": 1, "dead_letters": 1}
        assert stored(admin) == [(1, 1, 0, True), (2, 1, 0, False), (3, 3, 1, False), (4, 4, 0, True)]
        assert letters(admin) == [(2, "23505")]

    def test_a_row_that_a_version_replaces_is_there_though_another_row_is_refused(self, url, admin, events):
        """A version of a table deletes a key before it inserts it, in whichever order the two come."""
        struct = changes("pgonce_deleted", id=t.LongType(), u=t.LongType(), seq=t.LongType())
        how = {"struct": struct, "delete_when": None, "change_feed": "delta", "dead_letters": True}
        apply(url, (1, 5, 1, WRITE), (1, 1, 1, DELETE), (3, 5, 1, WRITE), **how)
        assert stored(admin) == [(1, 5, 1), (2, 2, 0)]
        assert letters(admin) == [(3, "23505")]

    @pytest.mark.parametrize("dead_letters", [None, True])
    @pytest.mark.parametrize("order_by", [None, "seq"])
    def test_an_order_is_not_needed(self, order_by, dead_letters, url, admin, events):
        """Each key comes once, so that only one result is possible: the row that comes too early is tried again."""
        rows = [(1, 2, 1), (2, 3, 1)]
        publish(url, "inline", UPSERT, rows, "upsert", order_by=order_by, dead_letters=dead_letters)
        assert stored(admin) == [(1, 2, 1), (2, 3, 1)]
        assert letters(admin) == []

    @pytest.mark.parametrize("dead_letters", [None, True])
    def test_two_rows_do_not_exchange_a_value_that_is_checked_at_once(self, dead_letters, url, admin, events):
        """No order of the two changes is possible, in the source either, unless another change came between them."""
        rows = [(1, 2, 1), (2, 1, 1), (3, 3, 1)]
        if dead_letters is None:
            with pytest.raises(UniqueViolation, match="one_u"):
                publish(url, "inline", UPSERT, rows, "upsert")
            assert stored(admin) == [(1, 1, 0), (2, 2, 0)]
        else:
            publish(url, "inline", UPSERT, rows, "upsert", dead_letters=True)
            assert stored(admin) == [(1, 1, 0), (2, 2, 0), (3, 3, 1)]
            assert letters(admin) == [(1, "23505"), (2, "23505")]

    @pytest.mark.parametrize(
        ("full_type", "moves"), [("varchar(3)", "abc "), ("char(5)", "abc "), ("ext.citext", "ABC"), ("text", "abc")]
    )
    def test_a_value_is_moved_that_the_index_calls_equal(self, full_type, moves, url_with):
        """As the column holds it, and by the equality of the index, which need not be that of texts; in keys too."""
        url, struct = url_with("citext"), changes(id=t.StringType(), u=t.StringType(), seq=t.LongType())
        ensure_ledger(url)
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                f"CREATE TABLE events (id {full_type} PRIMARY KEY, u {full_type} UNIQUE, seq bigint)".encode()
            )
            admin.execute("INSERT INTO events VALUES ('abc', 'abc', 0), ('def', 'def', 0)")
            rows = [("aaa", moves, 1, WRITE), (moves, "new", 1, WRITE)]
            assert apply(url, *rows, struct=struct) == {"written": 2}
            # A row may keep its value, and one that wants the value of a row which the batch leaves alone has none.
            rows = [(moves, "new", 2, WRITE), ("ghi", "def", 2, WRITE)]
            assert apply(url, *rows, struct=struct, dead_letters=True) == {"written": 1, "dead_letters": 1}
            found = admin.execute("SELECT row_data ->> 'id', code FROM pgonce.dead_letters").fetchall()
            assert found == [("ghi", "23505")]

    @pytest.mark.parametrize("order", [None, "the same"])
    def test_a_value_that_cannot_have_moved_is_put_aside(self, order, url, admin, events):
        """The row that has it is not in the batch, or two rows of the batch want it."""
        rows = [(5, 1, 1), (6, 6, 1), (7, 6, 1), (8, 8, 1)]
        publish(url, "inline", UPSERT, rows, "upsert", order_by=order and "seq", dead_letters=True)
        assert stored(admin) == [(1, 1, 0), (2, 2, 0), (6, 6, 1), (8, 8, 1)]
        assert letters(admin) == [(5, "23505"), (7, "23505")]

    @pytest.mark.parametrize(("dead_letters", "order_by"), [(None, None), (True, None), (True, "seq")])
    def test_a_deferred_constraint_is_checked_in_the_end(self, order_by, dead_letters, url, admin, events):
        """So it cures what an order cures, without one."""
        admin.execute("ALTER TABLE events DROP CONSTRAINT one_u, ADD UNIQUE (u) DEFERRABLE INITIALLY DEFERRED")
        rows = [(2, 3, 1), (1, 2, 1)]
        publish(url, "inline", UPSERT, rows, "upsert", order_by=order_by, dead_letters=dead_letters)
        assert stored(admin) == [(1, 2, 1), (2, 3, 1)]
        assert letters(admin) == []

    def test_a_period_of_an_exclusion_constraint_moves_between_rows(self, url, admin):
        """An exclusion constraint is one of several rows too."""
        admin.execute(
            "CREATE TABLE events (id bigint PRIMARY KEY, u bigint, seq bigint,"
            "CONSTRAINT apart EXCLUDE USING gist (int8range(u, u + 2) WITH &&)); INSERT INTO events VALUES (1, 10, 0)"
        )
        rows = [(1, 20, 1), (2, 11, 2)]
        publish(url, "inline", UPSERT, rows[::-1], "upsert", order_by="seq", dead_letters=True)
        assert stored(admin) == [(1, 20, 1), (2, 11, 2)]
        with pytest.raises(ExclusionViolation, match="apart"):
            publish(url, "inline", UPSERT, [(3, 12, 3), (4, 30, 4)], "upsert", order_by="seq")
        publish(url, "inline", UPSERT, [(2, 40, 3), (1, 11, 4)][::-1], "upsert", dead_letters=True)
        assert stored(admin) == [(1, 11, 4), (2, 40, 3)]
        publish(url, "inline", UPSERT, [(3, 12, 3), (4, 30, 4)], "upsert", dead_letters=True)
        assert letters(admin) == [(3, "23P01")]

    def test_an_index_on_an_expression(self, url, admin):
        """Which rows have a value of it is not looked up; in their order they are found all the same."""
        admin.execute(
            "CREATE TABLE events (id bigint PRIMARY KEY, u bigint, seq bigint);"
            "CREATE UNIQUE INDEX ON events (abs(u)); INSERT INTO events VALUES (1, 1, 0), (2, 2, 0)"
        )
        publish(url, "inline", UPSERT, [(1, -2, 2), (2, 3, 1), (4, -3, 3)], "upsert", order_by="seq", dead_letters=True)
        assert stored(admin) == [(1, -2, 2), (2, 3, 1)]
        assert letters(admin) == [(4, "23505")]

    @pytest.mark.parametrize(("collation", "seqs"), [("C", "Ba"), ("und-x-icu", "aB")])
    def test_texts_are_ordered_as_the_table_orders_them(self, collation, seqs, icu_url):
        """By the collation of the column, whatever that of the database is."""
        ensure_ledger(icu_url)
        struct = changes(id=t.LongType(), u=t.LongType(), seq=t.StringType())
        with psycopg.connect(icu_url, autocommit=True) as admin:
            admin.execute(
                f'CREATE TABLE events (id bigint PRIMARY KEY, u bigint UNIQUE, seq text COLLATE "{collation}");'
                "INSERT INTO events VALUES (1, 1, ''), (2, 2, '')".encode()
            )
            apply(icu_url, (1, 2, seqs[1], WRITE), (2, 3, seqs[0], WRITE), struct=struct, dead_letters=True)
            assert stored(admin) == [(1, 2, seqs[1]), (2, 3, seqs[0])]


NODES_TABLE = """
CREATE TABLE nodes (id bigint PRIMARY KEY, parent bigint REFERENCES nodes ON DELETE {action}, name text, seq bigint,
                    by_others text);
CREATE TABLE items (node bigint REFERENCES nodes ON DELETE CASCADE, what text)
"""


# For what does not depend on which action it is.
CASCADING = pytest.mark.parametrize("action", ["CASCADE"], indirect=True)


class TestActions:
    """Foreign keys with an action on deletes."""

    @pytest.fixture(params=["CASCADE", "SET NULL", "SET DEFAULT"])
    def action(self, request, url, admin):
        """A tree of nodes: 2 hangs on 1, and has a value and an item that the feed does not have."""
        admin.execute(NODES_TABLE.format(action=request.param).encode())
        apply(url, (1, None, "old root", 1, WRITE), (3, None, "new root", 2, WRITE), struct=NODES, table="nodes")
        apply(url, (2, 1, "node", 3, WRITE), struct=NODES, table="nodes")
        admin.execute("UPDATE nodes SET by_others = 'kept' WHERE id = 2; INSERT INTO items VALUES (2, 'an item')")
        return request.param

    def test_a_row_that_moves_away_from_a_deleted_parent_stays(self, action, url, admin):
        """With all that others have put into it, and what hangs on it."""
        how = {"struct": NODES, "table": "nodes", "keep_where": "?", "transport": "both"}
        apply(url, (2, 3, "?", 4, WRITE), (1, None, None, 5, DELETE), **how)
        assert stored(admin, "nodes") == [(2, 3, "node", 4, "kept"), (3, None, "new root", 2, None)]
        assert stored(admin, "items") == [(2, "an item")]

    def test_what_still_hangs_on_it_goes_with_it(self, action, url, admin):
        """A row that moves away only after its parent was deleted is one that comes back, as the action left it."""
        apply(url, (1, None, None, 4, DELETE), (2, 3, "node", 5, WRITE), struct=NODES, table="nodes")
        kept = None if action == "CASCADE" else "kept"
        assert stored(admin, "nodes") == [(2, 3, "node", 5, kept), (3, None, "new root", 2, None)]
        assert stored(admin, "items") == ([] if action == "CASCADE" else [(2, "an item")])

    @CASCADING
    def test_without_an_order_such_a_table_is_refused(self, action, url, admin):
        """Before the first row, and in the commit."""
        for dead_letters in (None, True):
            how = {"mode": "apply", "delete_when": "gone", "dead_letters": dead_letters}
            with pytest.raises(TargetError, match=r"DELETE_ACTION.*nodes.*orderBy is not set"):
                look_once("query", url, destination("nodes", **how), encoded_columns(NODES))
            with pytest.raises(TargetError, match="DELETE_ACTION"):
                publish(url, "inline", NODES, [(2, 3, "node", 4, WRITE)], table="nodes", **how)

    @CASCADING
    def test_a_delete_and_a_write_of_one_order_are_refused(self, action, url, admin):
        """Nothing says which of the two came first."""
        with pytest.raises(TargetError, match=r"DELETE_ACTION.*same value of orderBy"):
            apply(url, (2, 3, "node", 4, WRITE), (1, None, None, 4, DELETE), struct=NODES, table="nodes")

    @CASCADING
    @pytest.mark.parametrize("deletes", ["soft:gone_at", "ignore"])
    def test_deletes_that_remove_no_row_are_no_matter(self, action, deletes, url, admin):
        """They fire no action."""
        admin.execute("ALTER TABLE nodes ADD gone_at boolean")
        rows = [(2, 3, "node", 4, WRITE), (1, None, None, 4, DELETE)]
        apply(url, *rows, struct=NODES, table="nodes", deletes=deletes, order_by="seq")
        assert [row[:2] for row in stored(admin, "nodes")] == [(1, None), (2, 3), (3, None)]

    def test_by_way_of_another_table(self, url, admin):
        """An action that comes back to the table through others is seen too."""
        admin.execute(
            "CREATE TABLE nodes (id bigint PRIMARY KEY, parent bigint, name text, seq bigint);"
            "CREATE TABLE groups (id bigint PRIMARY KEY, owner bigint REFERENCES nodes ON DELETE CASCADE);"
            "ALTER TABLE nodes ADD FOREIGN KEY (parent) REFERENCES groups ON DELETE CASCADE"
        )
        how = {"mode": "apply", "delete_when": "gone"}
        with pytest.raises(TargetError, match="DELETE_ACTION"):
            publish(url, "inline", NODES, [(2, None, "node", 4, WRITE)], table="nodes", **how)

    @pytest.mark.parametrize("partitioned", [False, True])
    def test_between_tables_of_one_query(self, partitioned, url, admin):
        """Tables of one query are written one after the other, so an action between them is refused."""
        parts = "PARTITION BY HASH (id)" if partitioned else ""
        admin.execute(
            f"CREATE TABLE orders (id bigint PRIMARY KEY, seq bigint) {parts};"
            "CREATE TABLE lines (id bigint PRIMARY KEY, order_id bigint, seq bigint);".encode()
        )
        if partitioned:
            admin.execute("CREATE TABLE orders_0 PARTITION OF orders FOR VALUES WITH (MODULUS 1, REMAINDER 0)")
        columns = {"kind": t.StringType(), "id": t.LongType(), "order_id": t.LongType(), "seq": t.LongType()}
        columns["gone"] = t.BooleanType()
        applied = {"mode": "apply", "deleteWhen": "gone", "orderBy": "seq"}
        where = routes({"orders": applied, "lines": applied})
        admin.execute("ALTER TABLE orders ADD order_id bigint")
        rows = typed_rows(columns, [("orders", 1, None, 1, WRITE), ("lines", 2, 1, 2, WRITE)])

        def commit_rows(number: int) -> str:
            return commit(url, make_planned_batch(number), where, rows).name

        assert commit_rows(0) == "NEW"
        admin.execute("ALTER TABLE lines ADD FOREIGN KEY (order_id) REFERENCES orders ON DELETE CASCADE")
        with pytest.raises(TargetError, match=r"DELETE_ACTION.*orders .* public\.lines"):
            look_once("query", url, where, rows.columns)
        with pytest.raises(TargetError, match="DELETE_ACTION"):
            commit_rows(1)
        admin.execute("ALTER TABLE lines DROP CONSTRAINT lines_order_id_fkey")
        admin.execute("ALTER TABLE lines ADD FOREIGN KEY (order_id) REFERENCES orders DEFERRABLE INITIALLY DEFERRED")
        assert commit_rows(1) == "NEW"


class TestReferences:
    """A foreign key of a table to itself that is checked at once, and has no action."""

    @pytest.fixture(autouse=True)
    def nodes(self, admin):
        """Node 2 hangs on node 1, and node 5 on node 4."""
        admin.execute(
            "CREATE TABLE nodes (id bigint PRIMARY KEY, parent bigint REFERENCES nodes, name text, seq bigint);"
            "INSERT INTO nodes (id, parent) VALUES (1, NULL), (2, 1), (3, NULL), (4, NULL), (5, 4)"
        )

    @pytest.mark.parametrize("dead_letters", [None, True])
    @pytest.mark.parametrize("first", [0, 1])
    def test_a_row_that_moves_away_lets_its_parent_go(self, first, dead_letters, url, admin):
        """Its move comes first by orderBy, in whichever order the rows come."""
        rows = [(2, 3, "moved", 1, WRITE), (1, None, None, 2, DELETE)]
        how = {"struct": NODES, "table": "nodes", "dead_letters": dead_letters, "transport": "both"}
        assert apply(url, rows[first], rows[1 - first], **how) == {"written": 1, "deleted": 1}
        assert [row[:2] for row in stored(admin, "nodes")] == [(2, 3), (3, None), (4, None), (5, 4)]
        assert letters(admin) == []

    def test_other_rows_that_the_key_refuses_are_put_aside(self, url, admin):
        """A delete of a row to which another one still refers, and a row whose parent is nowhere."""
        rows = [
            (4, None, None, 4, DELETE),
            (1, None, None, 2, DELETE),
            (6, 7, "no parent", 3, WRITE),
            (2, 3, "moved", 1, WRITE),
        ]
        how = {"struct": NODES, "table": "nodes", "dead_letters": True}
        assert apply(url, *rows, **how) == {"written": 1, "deleted": 1, "dead_letters": 2}
        assert [row[:2] for row in stored(admin, "nodes")] == [(2, 3), (3, None), (4, None), (5, 4)]
        assert letters(admin) == [(4, "23503"), (6, "23503")]

    @pytest.mark.parametrize("order_by", [None, "seq"])
    def test_an_order_is_not_needed(self, order_by, url, admin):
        """A delete changes no other row here, so that only one result is possible."""
        rows = [(1, None, None, 1, DELETE), (2, 3, "moved", 1, WRITE)]
        counts = apply(url, *rows, struct=NODES, table="nodes", order_by=order_by)
        assert counts == {"written": 1, "deleted": 1}
        assert [row[:2] for row in stored(admin, "nodes")] == [(2, 3), (3, None), (4, None), (5, 4)]
        with pytest.raises(ForeignKeyViolation, match="nodes_parent_fkey"):
            apply(url, (4, None, None, 2, DELETE), struct=NODES, table="nodes", order_by=order_by)


FOREST = changes(id=t.LongType(), parent=t.LongType(), u=t.LongType(), name=t.StringType(), seq=t.LongType())
FOREST_TABLE = """
CREATE TABLE forest (id bigint PRIMARY KEY, parent bigint REFERENCES forest ON DELETE CASCADE, u bigint UNIQUE,
                     name text, seq bigint, by_others bigint DEFAULT 0)
"""
EVENTS = st.lists(
    st.tuples(
        st.integers(1, 5), st.sampled_from([None, 1, 2, 3, 4, 5]), st.integers(1, 5), st.booleans(), st.booleans()
    ),
    min_size=1,
    max_size=30,
)


def valid(drawn: list) -> tuple[list, dict]:
    """The changes that a source with the table's constraints allows, and the rows that they leave."""
    rows: dict[int, tuple] = {}
    feed = []
    for key, parent, u, reads, deletes in drawn:
        seq = len(feed) + 1
        if deletes:
            if key not in rows:
                continue
            feed.append((key, None, None, None, seq, DELETE))
            gone = {key}
            while more := {k for k, row in rows.items() if row[0] in gone} - gone:
                gone |= more
            rows = {k: row for k, row in rows.items() if k not in gone}
            continue
        others = {row[1] for k, row in rows.items() if k != key}
        if u in others or parent == key or (parent is not None and parent not in rows):
            continue
        # A name that the source could not read is that of the stored row.
        name = "?" if key in rows and not reads else f"name {seq}"
        feed.append((key, parent, u, name, seq, WRITE))
        rows[key] = (parent, u, rows[key][2] if name == "?" else name, seq)
    return feed, rows


def test_the_cuts_do_not_matter(url, admin):
    """Trees whose nodes move, are deleted, come back and hand on unique values are what they are in the source."""
    admin.execute(FOREST_TABLE.encode())

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
    @given(EVENTS, st.lists(st.integers(1, 12), min_size=1, max_size=10), st.booleans(), st.booleans())
    def histories(drawn, sizes, dead_letters, staged):
        feed, rows = valid(drawn)
        note(feed)
        with psycopg.connect(url) as connection:
            connection.execute("TRUNCATE forest, pgonce.dead_letters")
            rest, number = feed, 0
            while rest:
                size = sizes[number % len(sizes)]
                connection.commit()
                apply(
                    connection, *rest[:size], struct=FOREST, table="forest", keep_where="?",
                    dead_letters=dead_letters, transport="staged" if staged else "inline",
                )  # fmt: skip
                rest, number = rest[size:], number + 1
            found = connection.execute("SELECT id, parent, u, name, seq FROM forest").fetchall()
            assert {key: tuple(row) for key, *row in found} == rows
            assert connection.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (0,)

    histories()
