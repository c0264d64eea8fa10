"""
One batch into several tables, without Spark: each row in the table that its value chooses, or no row anywhere.

Covers: sink.writing.write_batch.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace

import psycopg
import pytest
from pyspark.sql import types as t
from support.batches import make_planned_batch
from support.fixtures.driver import wait_until
from support.meanwhile import meanwhile
from support.routed_rows import TABLES, TYPES, commit, routed, routes
from support.typed_rows import typed_rows
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import ConfigurationError, PgonceError, TargetError
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.writing import routes as by_route

BOTH = {"orders": {"mode": "upsert"}, "clicks": {}}


@pytest.fixture(autouse=True)
def tables(admin):
    """The tables that most tests choose among."""
    admin.execute(TABLES)


def contents(admin):
    """Both tables, in the order of their keys."""
    orders = admin.execute("SELECT id, name FROM orders ORDER BY id").fetchall()
    return orders, admin.execute("SELECT id, name, kind FROM clicks ORDER BY id").fetchall()


def recorded(admin):
    """The newest batch: rows, rows dropped, what became of them, and how many each table got."""
    columns = "rows, dropped_rows, counts, tables"
    return admin.execute(f"SELECT {columns} FROM pgonce.batches ORDER BY batch_id DESC LIMIT 1").fetchone()


def write(url, where, *rows, number=0):
    """Commit a batch of rows of (kind, id, name)."""
    commit(url, make_planned_batch(number), where, routed(*rows))


def test_each_row_goes_into_its_table(admin, url):
    """The column that chooses is written where the table has it; rows are counted for each table."""
    write(url, routes(BOTH), ("orders", 1, "a"), ("clicks", 2, "b"))
    write(url, routes(BOTH), ("orders", 1, "c"), ("orders", 3, "d"), number=1)
    assert contents(admin) == ([(1, "c"), (3, "d")], [(2, "b", "clicks")])
    assert recorded(admin) == (2, 0, None, {"public.orders": 2})
    writer = admin.execute("SELECT sink_name, targets::text FROM pgonce.writers").fetchone()
    assert writer[0] == "route:kind"
    assert "public.orders" in writer[1]
    assert "public.clicks" in writer[1]


def test_a_value_is_compared_and_never_a_name(admin, url):
    """What is not in the list, letter by letter, is refused, even if a table has that name."""
    for value in ("ORDERS", "orders ", "public.orders", 'orders"; DROP TABLE orders; --', "", None):
        with pytest.raises(TargetError, match=r"\[ROUTE_UNKNOWN\]") as raised:
            write(url, routes(BOTH), ("orders", 1, "a"), (value, 2, "b"))
        assert ("null" if value is None else repr(value)) in raised.value.what
        assert contents(admin) == ([], [])


def test_rows_of_unknown_routes_are_put_aside(admin, url):
    """They are kept whole, as dead letters of the query, in the transaction of the batch."""
    where = routes(BOTH, unknown_routes="deadLetters", dead_letters=True, max_dead_letters=2)
    write(url, where, ("orders", 1, "a"), ("taxes", 2, "b"), (None, 3, "c"))
    assert recorded(admin)[:3] == (1, 0, {"written": 1, "dead_letters": 2})
    letters = admin.execute(
        "SELECT query_id, sink_name, batch_id, target, row_data, column_name, code FROM pgonce.dead_letters "
        "ORDER BY dead_letter_id"
    ).fetchall()
    assert letters == [
        ("q1", "route:kind", 0, "route:kind", {"kind": kind, "id": n, "name": name}, "kind", "ROUTE_UNKNOWN")
        for kind, n, name in (("taxes", 2, "b"), (None, 3, "c"))
    ]
    with pytest.raises(TargetError, match="ROUTE_UNKNOWN.*maxDeadLetters=2"):
        write(url, where, *[("taxes", n, "b") for n in range(3)], number=1)


@pytest.mark.parametrize("is_indexed", [False, True])
def test_many_rows_for_many_tables(admin, url, monkeypatch, is_indexed):
    """With or without an index on the routes, each table has its rows; a dropped row may have any value."""
    monkeypatch.setattr(by_route, "INDEXED_TABLES", 2 if is_indexed else 1000)
    monkeypatch.setattr(by_route, "INDEXED_ROWS", 10)
    names = [f"t{number}" for number in range(30)]
    for name in names:
        admin.execute(f"CREATE TABLE {name} (id bigint PRIMARY KEY, name text)")
    rows = [*((names[n % 30], n, f"n{n}") for n in range(300)), (os.urandom(5000).hex(), 300, "b")]
    where = routes({name: {"mode": "upsert"} for name in names}, unknown_routes="drop")
    write(url, where, *rows)
    for number, name in enumerate(names):
        found = admin.execute(f"SELECT id, name FROM {name} ORDER BY id").fetchall()
        assert found == [(n, f"n{n}") for n in range(number, 300, 30)]


def test_parents_come_before_children(admin, url):
    """Tables are written in the user's order, and locked in another one, so that rows may refer to earlier tables'."""
    admin.execute("CREATE TABLE children (id bigint REFERENCES orders, name text)")
    rows = ("children", 1, "child"), ("orders", 1, "parent")
    with pytest.raises(TargetError):
        write(url, routes({"children": {}, "orders": {}}), *rows)
    write(url, routes({"orders": {}, "children": {}}), *rows)
    assert admin.execute("SELECT id, name FROM children").fetchall() == [(1, "child")]


@pytest.mark.parametrize("aside", [True, False])
def test_an_error_of_one_table_takes_no_rows_of_another_back(admin, url, aside):
    """
    One is written in order, because a value moves; then a soft delete breaks a constraint of the other. It is put
    aside, or nothing of either is written.
    """
    admin.execute(
        "CREATE TABLE a (id bigint PRIMARY KEY, u text UNIQUE, seq bigint); "
        "INSERT INTO a VALUES (1, 'x', 0), (2, 'y', 0); "
        "CREATE TABLE b (id bigint PRIMARY KEY, u text, seq bigint, gone boolean DEFAULT false, UNIQUE (u, gone));"
        "INSERT INTO b VALUES (1, 'x', 0, true), (2, 'x', 0, false)"
    )
    columns = ["id", "u", "seq"]
    where = routes(
        {
            "a": {"mode": "upsert", "orderBy": "seq", "columns": columns},
            "b": {"mode": "apply", "orderBy": "seq", "deleteWhen": "del", "deletes": "soft:gone", "columns": columns},
        },
        **({"dead_letters": True} if aside else {}),
    )
    kinds = {"kind": t.StringType(), "id": t.LongType(), "u": t.StringType()}
    kinds |= {"seq": t.LongType(), "del": t.BooleanType()}
    rows = typed_rows(
        kinds, [("a", 2, "z", 1, False), ("a", 1, "y", 2, False), ("b", 3, "q", 1, False), ("b", 2, "x", 2, True)]
    )
    with nullcontext() if aside else pytest.raises(PgonceError):
        commit(url, make_planned_batch(0), where, rows)
    in_a, in_b = (admin.execute(f"SELECT id, u FROM {table} ORDER BY id".encode()).fetchall() for table in "ab")
    assert in_a == ([(1, "y"), (2, "z")] if aside else [(1, "x"), (2, "y")])
    assert in_b == [(1, "x"), (2, "x"), *([(3, "q")] if aside else [])]
    assert admin.execute("SELECT count(*) FROM pgonce.batches").fetchone() == (int(aside),)
    letters = admin.execute("SELECT row_data ->> 'id', code FROM pgonce.dead_letters").fetchall()
    assert letters == ([("2", "23505")] if aside else [])


def test_one_bad_row_keeps_all_tables_as_they_were(admin, url):
    """What Postgres refuses for one table is refused for the batch, and the error says for which route."""
    with pytest.raises(TargetError) as raised:
        write(url, routes({"clicks": {}, "orders": {}}), ("clicks", 1, "a"), ("orders", 2, "b"), ("orders", 2, "c"))
    assert raised.value.code
    assert contents(admin) == ([], [])
    admin.execute("ALTER TABLE orders DROP COLUMN name")
    with pytest.raises(TargetError, match="COLUMN_UNKNOWN.*'orders' in tables"):
        write(url, routes(BOTH), ("clicks", 1, "a"), ("orders", 2, "b"))
    assert admin.execute("TABLE clicks").fetchall() == []


def test_who_swallows_the_error_commits_no_table(admin, url):
    """The transaction has failed, although it is not Postgres that refuses to write the second table by key."""
    where = routes({"orders": {}, "clicks": {"mode": "upsert", "keys": ["id"]}})
    with psycopg.connect(url) as connection:
        with pytest.raises(TargetError):
            write_batch_in_tx(connection, where, routed(("orders", 1, "a"), ("clicks", None, "b")))
        connection.commit()
    assert contents(admin) == ([], [])


def test_two_names_of_one_table_are_refused(admin, url):
    """The commit knows a table by its oid, however it is written."""
    for other in ("orders", "public.orders"):
        with pytest.raises(ConfigurationError, match=r"BAD_OPTION.*both go into public\.orders"):
            write(url, routes({"orders": {}, "o": {"table": other}}))


def test_a_table_that_gets_no_rows_is_not_locked(admin, url):
    """Somebody else may lock it for as long as they like."""
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        write(url, routes(BOTH), ("clicks", 1, "a"))
    assert contents(admin)[1] == [(1, "a", "clicks")]


def test_tables_are_locked_in_the_order_of_their_oids(admin, url, observer):
    """While it waits for the table that comes first in the list, the commit has locked the one with the lesser oid."""
    held = (
        "SELECT count(*) FROM pg_locks AS has JOIN pg_locks AS waits USING (pid) WHERE has.granted "
        "AND NOT waits.granted AND has.relation = 'orders'::regclass AND waits.relation = 'clicks'::regclass"
    )
    rows = routed(("orders", 1, "a"), ("clicks", 2, "b"))
    where = routes({"clicks": {}, "orders": {}})
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE clicks IN ACCESS EXCLUSIVE MODE")
        writing = threading.Thread(target=commit, args=(url, make_planned_batch(0), where, rows))
        writing.start()
        assert wait_until(lambda: observer.execute(held).fetchone() == (1,))
    writing.join()
    assert contents(admin) == ([(1, "a")], [(2, "b", "clicks")])


@pytest.mark.parametrize(
    ("options", "others_list"),
    [
        ({"mode": "upsert", "keys": ("id",), "order_by": "name", "only_newer": True}, ["clicks", "orders"]),
        # These are emptied before any is written, children first.
        ({"mode": "complete"}, ["orders", "clicks"]),
    ],
    ids=["onlyNewer", "complete"],
)
def test_turns_are_taken_in_the_order_of_oids(admin, url, observer, options, others_list):
    """Who waits for its turn with one table has not yet taken that of a table with a greater oid, however listed."""
    admin.execute("ALTER TABLE clicks ADD PRIMARY KEY (id)")
    waits = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted "
        "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )

    def write(connection, tables, number):
        rows = routed(*[(table, number, "a") for table in tables])
        write_batch_in_tx(connection, routes({table: {} for table in tables}, **options), rows)

    def write_both():
        with psycopg.connect(url) as connection:
            write(connection, others_list, 2)

    with ThreadPoolExecutor(1) as pool, psycopg.connect(url) as first:
        write(first, ["orders"], 1)
        other = pool.submit(write_both)
        assert wait_until(lambda: observer.execute(waits).fetchone() == (1,))
        write(first, ["clicks"], 1)
        first.commit()
        other.result()
    left = [1, 2] if "keys" in options else [2]
    assert [[row[0] for row in rows] for rows in contents(admin)] == [left, left]


def test_tables_are_created_and_altered(admin, url):
    """CreateTable leaves the choosing column out; addColumns alters the tables that need it, and both are noted."""
    where = routes({"fresh": {"create_table": True}, "orders": {}, "clicks": {}}, schema_evolution="addColumns")
    admin.execute("ALTER TABLE orders DROP COLUMN name; ALTER TABLE clicks DROP COLUMN name")
    write(url, where, ("fresh", 1, "a"), ("orders", 2, "b"), ("clicks", 3, "c"))
    assert admin.execute("SELECT * FROM fresh").fetchall() == [(1, "a")]
    assert contents(admin) == ([(2, "b")], [(3, "c", "clicks")])
    changes = admin.execute("SELECT table_name FROM pgonce.target_changes ORDER BY 1").fetchall()
    assert changes == [("public.clicks",), ("public.orders",)]


def test_complete_mode_empties_tables_without_rows(admin, url):
    """A table whose rows are all gone from the result is empty afterwards."""
    where = routes(BOTH | {"orders": {}}, mode="complete")
    write(url, where, ("orders", 1, "a"), ("clicks", 2, "b"))
    write(url, where, ("clicks", 3, "c"), number=1)
    assert contents(admin) == ([], [(3, "c", "clicks")])


@pytest.mark.parametrize("mode_of_part", ["append", "complete"])
def test_a_table_that_is_replaced_keeps_what_its_partition_was_given(admin, url, mode_of_part):
    """The rows of the batch itself are not among those that are replaced."""
    admin.execute(
        "CREATE TABLE everything (id bigint, name text, kind text) PARTITION BY LIST (kind);"
        "CREATE TABLE part PARTITION OF everything FOR VALUES IN ('p');"
        "CREATE TABLE rest PARTITION OF everything DEFAULT"
    )
    where = routes({
        "p": {"table": "part", "mode": mode_of_part},
        "q": {"table": "everything", "mode": "complete"},
    })  # fmt: skip
    write(url, where, ("p", 1, "a"), ("q", 2, "b"))
    assert admin.execute("SELECT id FROM everything ORDER BY id").fetchall() == [(1,), (2,)]


def test_a_parent_that_is_replaced_keeps_the_children_of_the_batch(admin, url):
    """ON DELETE CASCADE takes the old children only."""
    admin.execute(
        "CREATE TABLE children (id bigint REFERENCES orders ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,"
        " name text); INSERT INTO orders VALUES (1, 'old'); INSERT INTO children VALUES (1, 'old')"
    )
    where = routes({"children": {}, "orders": {}}, mode="complete")
    write(url, where, ("children", 1, "new"), ("orders", 1, "new"))
    assert admin.execute("SELECT id, name FROM children").fetchall() == [(1, "new")]


def test_nobody_sees_one_table_without_the_other(admin, url):
    """A statement that reads both tables finds as many rows in one as in the other."""
    query = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM clicks)"
    with psycopg.connect(url, autocommit=True) as reader, meanwhile(lambda: reader.execute(query).fetchone()) as seen:
        for number in range(30):
            write(url, routes(BOTH), ("orders", number, "a"), ("clicks", number, "b"), number=number)
    assert len(set(seen)) > 1
    assert all(orders == clicks for orders, clicks in seen)


@pytest.mark.parametrize("aside", [1, 5])
def test_bad_rows_of_a_quiet_table_do_not_stop_the_good_ones_of_another(admin, url, aside):
    """Whether all rows are bad is asked of the whole batch. Each is put aside for its own table."""
    admin.execute("ALTER TABLE clicks ALTER name TYPE varchar(3)")
    bad = [("clicks", n, "long") for n in range(aside)]
    good = [("orders", n, "a") for n in range(9)]
    write(url, routes({"orders": {}, "clicks": {}}, dead_letters=True), *good, *bad)
    assert recorded(admin)[2:] == ({"written": 9, "dead_letters": aside}, {"public.orders": 9, "public.clicks": 0})
    letters = admin.execute("SELECT target, column_name, code, destination ->> 'table' FROM pgonce.dead_letters")
    assert set(letters.fetchall()) == {("public.clicks", "name", "22001", '"public"."clicks"')}


def test_a_batch_of_which_no_row_of_any_table_fits_is_refused(admin, url):
    """It says why one of them does not."""
    admin.execute("ALTER TABLE clicks ALTER name TYPE varchar(3); ALTER TABLE orders ALTER name TYPE varchar(3)")
    where = routes({"orders": {}, "clicks": {}}, dead_letters=True)
    with pytest.raises(TargetError, match=r"ALL_ROWS_REFUSED.*route:kind.*22001"):
        write(url, where, ("orders", 1, "long"), ("clicks", 1, "long"))
    assert contents(admin) == ([], [])


def test_rows_that_are_dropped_say_that_the_tables_are_sound(admin, url):
    """Two bad rows with them are put aside, as they are with rows that are written."""
    admin.execute("ALTER TABLE clicks ALTER name TYPE varchar(3); ALTER TABLE orders ALTER name TYPE varchar(3)")
    where = routes({"orders": {}, "clicks": {}}, unknown_routes="drop", dead_letters=True)
    write(url, where, ("other", 1, "abc"), ("orders", 2, "long"), ("clicks", 3, "long"))
    assert contents(admin) == ([], [])
    assert admin.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (2,)


def test_an_order_in_another_case_counts_where_a_table_gets_some_columns(admin, url):
    """As it does in a stream for one table."""
    where = routes({"orders": {"mode": "upsert", "columns": ["id", "name"], "order_by": "KIND"}, "clicks": {}})
    write(url, where, ("orders", 1, "a"), ("orders", 1, "b"))
    assert contents(admin)[0] in ([(1, "a")], [(1, "b")])


def test_a_table_that_is_created_gets_the_column_that_chooses_it_if_its_entry_lists_that(admin, url):
    """Without columns in the entry, it is only what chooses, and not a column of the table."""
    where = routes({"fresh": {"columns": ["id", "kind"]}, "plain": {}}, create_table=True)
    write(url, where, ("fresh", 1, "a"), ("plain", 2, "b"))
    assert admin.execute("SELECT id, kind FROM fresh").fetchall() == [(1, "fresh")]
    assert admin.execute("SELECT to_jsonb(plain) FROM plain").fetchone() == ({"id": 2, "name": "b"},)
    # One that is there must have it then.
    with pytest.raises(TargetError, match="COLUMN_UNKNOWN"):
        write(url, routes({"orders": {"columns": ["id", "kind"]}}), ("orders", 1, "a"), number=1)


def test_a_dead_letter_says_where_its_row_comes_from_though_its_table_gets_some_columns(admin, url):
    """And it keeps the values that the table does not get, as they were."""
    admin.execute("ALTER TABLE orders ALTER name TYPE varchar(3)")
    given = {"topic": t.StringType(), "partition": t.IntegerType(), "offset": t.LongType(), "x": t.DoubleType()}
    rows = typed_rows(
        {**TYPES, **given}, [("orders", 1, "long", "o", 0, 7, -0.0), ("orders", 2, "abc", "o", 0, 8, 1.0)]
    )
    rows = replace(rows, positions=PositionColumns("topic", "partition", "offset", written=True))
    where = routes({"orders": {"columns": ["id", "name"]}}, dead_letters=True)
    commit(url, make_planned_batch(0), where, rows)
    (letter,) = admin.execute("SELECT position, row_data -> 'x' FROM pgonce.dead_letters").fetchall()
    assert letter == ({"topic": "o", "partition": 0, "offset": 7}, "-0")
