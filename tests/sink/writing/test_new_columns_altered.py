"""
A table gets its new columns in the batch's transaction, even if others use it, or the batch is refused with a reason.

Covers: sink.writing.rows.
"""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import types as t
from support.blocked import wait_for_blocked
from support.committed_batch import rows_in
from support.typed_rows import commit_typed, struct_of, typed_rows
from support.with_rooms import look_at_table, write_batch_in_tx

from pgonce.offsets_store.errors import CommitError, TargetError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination

COLUMNS = {"id": t.LongType(), "name": t.StringType(), "seen": t.TimestampNTZType()}
ROWS = [(1, "one", None), (2, "two", None)]
TABLE = "CREATE TABLE events (id bigint PRIMARY KEY)"
ADD = destination("events", schema_evolution="addColumns")
UPSERT = destination("events", "upsert", ("id",), schema_evolution="addColumns")


def columns_of(connection) -> list[str]:
    """The table's columns, in order."""
    return [column.name for column in connection.execute("SELECT * FROM events LIMIT 0").description]


@pytest.mark.parametrize(
    ("to", "staged"),
    [
        (ADD, False),
        (ADD, True),
        (UPSERT, False),
        (destination("events", "complete", schema_evolution="addColumns"), True),
    ],
)
def test_new_columns_come_with_the_rows_that_bring_them(admin, url, to, staged):
    """Whichever way the rows go in; the table stays the same one, and the ledger tells what was altered."""
    admin.execute(TABLE)
    admin.execute("INSERT INTO events VALUES (0)")
    oid = admin.execute("SELECT 'events'::regclass::oid").fetchone()[0]
    commit_typed(url, 0, to, COLUMNS, ROWS, staged=staged)
    old = [] if to.mode == "complete" else [(0, None, None)]
    assert rows_in(admin, "events") == [*old, *ROWS]
    assert admin.execute("SELECT targets FROM pgonce.writers").fetchone()[0] == {"public.events": oid}
    assert admin.execute("SELECT table_name, change FROM pgonce.target_changes").fetchall() == [
        (
            "public.events",
            "public.events: column name text was added; column seen timestamp was added.",
        )
    ]


def test_columns_that_only_say_what_to_do_are_not_added(admin, url):
    """What makes a row a delete, and what orders the changes, if the table lacks it, in any case."""
    admin.execute(TABLE)
    columns = {"id": t.LongType(), "name": t.StringType(), "gone": t.BooleanType(), "seq": t.LongType()}
    how = {"delete_when": "gone", "schema_evolution": "addColumns"}
    rows = [(1, "one", False, 1), (2, "two", False, 1), (2, "two", True, 2), (1, "uno", False, 2)]
    commit_typed(url, 0, destination("events", "apply", ("id",), "SEQ", **how), columns, rows)
    assert columns_of(admin) == ["id", "name"]
    assert rows_in(admin, "events") == [(1, "uno")]


def test_what_only_newer_compares_is_a_column_of_the_table(admin, url):
    """It is added like any other, and never left out."""
    admin.execute(TABLE)
    admin.execute("INSERT INTO events VALUES (1)")
    columns = {"id": t.LongType(), "seq": t.LongType(), "name": t.StringType()}

    def write(number: int, evolution: str, row: tuple[int, int, str]) -> None:
        how = {"only_newer": True, "schema_evolution": evolution}
        commit_typed(url, number, destination("events", "upsert", ("id",), "seq", **how), columns, [row])

    with pytest.raises(TargetError, match="seq"):
        write(0, "ignoreExtra", (1, 5, "five"))
    write(0, "addColumns", (1, 5, "five"))
    write(1, "addColumns", (1, 4, "four"))
    assert rows_in(admin, "events") == [(1, 5, "five")]


@pytest.mark.parametrize(("mode", "staged"), [("append", False), ("upsert", True)])
def test_ignored_columns_are_left_out_and_said_once(admin, url, staged, mode, caplog):
    """The ledger says it once, too, however many batches there are."""
    admin.execute("CREATE TABLE events (name text, id bigint PRIMARY KEY)")
    keys = ("id",) if mode == "upsert" else ()
    to = destination("events", mode, keys, schema_evolution="ignoreExtra")
    for number in range(2):
        commit_typed(url, number, to, COLUMNS, [(number, "a", None)], staged=staged)
    assert rows_in(admin, "events") == [("a", 0), ("a", 1)]
    sentence = "public.events lacks column seen of the rows, left out by schemaEvolution=ignoreExtra."
    assert [record.getMessage() for record in caplog.records].count(sentence) == 1
    assert admin.execute("SELECT batch_id, change FROM pgonce.target_changes").fetchall() == [(0, sentence)]


def test_a_batch_that_is_rolled_back_takes_its_column_with_it(admin, url):
    """Here a row is refused after the column was added."""
    admin.execute("CREATE TABLE events (id bigint CHECK (id < 2))")
    with pytest.raises(TargetError, match="CHECK_VIOLATION"):
        commit_typed(url, 0, ADD, COLUMNS, ROWS)
    assert columns_of(admin) == ["id"]
    commit_typed(url, 0, ADD, COLUMNS, ROWS[:1])
    assert columns_of(admin) == ["id", "name", "seen"]


def test_two_queries_that_add_the_same_column_at_once(admin, url):
    """One adds it, the other finds it, and all rows of both are there."""
    admin.execute(TABLE)
    gate = threading.Barrier(4)

    def write(number: int) -> None:
        gate.wait()
        rows = [(number * 10 + i, "x", None) for i in range(3)]
        commit_typed(url, 0, UPSERT, COLUMNS, rows, query=f"q{number}", lock_timeout=20, retry_timeout=30)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert columns_of(admin) == ["id", "name", "seen"]
    assert [row[0] for row in rows_in(admin, "events")] == [n * 10 + i for n in range(4) for i in range(3)]
    assert admin.execute("SELECT count(*) FROM pgonce.target_changes").fetchone() == (1,)


def test_a_column_that_somebody_else_is_adding_is_waited_for(admin, url):
    """It is not added twice."""
    admin.execute(TABLE)
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("ALTER TABLE events ADD COLUMN name text, ADD COLUMN seen timestamp")
        writing = pool.submit(commit_typed, url, 0, ADD, COLUMNS, ROWS, lock_timeout=30, retry_timeout=60)
        wait_for_blocked(admin, other)
        other.commit()
        writing.result()
    assert rows_in(admin, "events") == ROWS
    assert admin.execute("SELECT count(*) FROM pgonce.target_changes").fetchone() == (0,)


def test_a_long_reader_is_named_and_others_read_meanwhile(admin, url):
    """The batch fails as for any lock that is held; the column is not there, and nobody waited for long."""
    admin.execute(TABLE)
    longest = 0.0
    with psycopg.connect(url, application_name="a long report") as reader, ThreadPoolExecutor(1) as pool:
        reader.execute("SELECT *, 'zq7hunter' FROM events").fetchall()
        writing = pool.submit(commit_typed, url, 0, ADD, COLUMNS, ROWS, lock_timeout=6, retry_timeout=0)
        while not writing.done():
            began = time.monotonic()
            admin.execute("SELECT * FROM events").fetchall()
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.02)
        error = writing.exception()
    assert isinstance(error, CommitError)
    assert error.code == "LOCKED"
    assert "application 'a long report'" in error.what
    assert "query: SELECT *, " in error.what
    assert "zq7" not in error.what
    assert 0.5 < longest < 3
    assert columns_of(admin) == ["id"]


def test_the_rows_are_brought_before_readers_are_locked_out(admin, url):
    """While rows are still on their way, the table can be read and altered by others."""
    admin.execute(TABLE)
    rows = typed_rows(COLUMNS, ROWS)
    seen = []

    def slowly():
        locks = "SELECT mode FROM pg_locks WHERE relation = 'events'::regclass AND pid <> pg_backend_pid()"
        seen.extend(admin.execute(locks).fetchall())
        return rows.bodies()

    given = replace(rows, bodies=slowly)
    with connect(url) as connection:
        write_batch_in_tx(connection, ADD, given)
        connection.commit()
    assert seen == []
    assert rows_in(admin, "events") == ROWS


def test_two_sessions_that_hold_a_weaker_lock_do_not_stand_in_each_others_way(admin, url):
    """The look gives its lock back before the stronger one is asked for."""
    admin.execute(TABLE)
    with connect(url) as one, connect(url) as two:
        two.execute("BEGIN")
        write_batch_in_tx(one, ADD, typed_rows(COLUMNS, ROWS[:1]))
        thread = threading.Thread(target=write_batch_in_tx, args=[two, ADD, typed_rows(COLUMNS, ROWS[1:])])
        thread.start()
        wait_for_blocked(admin, one)
        one.commit()
        thread.join()
        two.commit()
    assert rows_in(admin, "events") == ROWS


def test_a_function_that_has_written_to_the_table_is_told_why_it_cannot_be_altered(admin, url):
    """A deferred constraint is still to be checked."""
    admin.execute(TABLE)
    admin.execute("CREATE TABLE parents (id bigint PRIMARY KEY)")
    admin.execute("ALTER TABLE events ADD FOREIGN KEY (id) REFERENCES parents DEFERRABLE INITIALLY DEFERRED")
    admin.execute("INSERT INTO parents VALUES (1), (2), (3)")
    with connect(url) as connection:
        write_batch_in_tx(connection, ADD, typed_rows({"id": t.LongType()}, [(3,)]))
        with pytest.raises(TargetError, match=r"TARGET_NOT_ALTERED.*SET CONSTRAINTS.*ADD COLUMN"):
            write_batch_in_tx(connection, ADD, typed_rows(COLUMNS, ROWS))
    with connect(url) as connection:
        write_batch_in_tx(connection, ADD, typed_rows({"id": t.LongType()}, [(3,)]))
        connection.execute("SET CONSTRAINTS events_id_fkey IMMEDIATE")
        write_batch_in_tx(connection, ADD, typed_rows(COLUMNS, ROWS))
        connection.commit()
    assert [row[0] for row in rows_in(admin, "events")] == [1, 2, 3]


def test_what_postgres_refuses_is_refused_in_words(admin, url):
    """Whatever it is that we have not looked for: here a table that inherits has another column of that name."""
    admin.execute(TABLE)
    admin.execute("CREATE TABLE older (name integer) INHERITS (events)")
    with pytest.raises(TargetError, match=r'TARGET_NOT_ALTERED.*"older".*ADD COLUMN "name" text'):
        commit_typed(url, 0, ADD, COLUMNS, ROWS)


def test_our_timeouts_end_with_the_lock(admin, url):
    """A function's own lock_timeout is in force again afterwards."""
    admin.execute(TABLE)
    with connect(url) as connection:
        connection.execute("SET LOCAL lock_timeout = '7s'")
        write_batch_in_tx(connection, ADD, typed_rows(COLUMNS, ROWS))
        assert connection.execute("SHOW lock_timeout").fetchone() == ("7s",)


@pytest.mark.parametrize("staged", [False, True])
def test_a_value_that_is_too_long_is_put_aside_where_columns_are_added(admin, url, staged):
    """The type of a column stays as it is, and the batch that adds one has its dead letter."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5))")
    where = destination("events", schema_evolution="addColumns", dead_letters=True)
    commit_typed(url, 0, where, COLUMNS, [(1, "short", None), (2, "longer", None)], staged=staged)
    assert rows_in(admin, "events") == [(1, "short", None)]
    letters = "SELECT row_data ->> 'id', column_name, code FROM pgonce.dead_letters"
    assert admin.execute(letters).fetchall() == [("2", "name", "22001")]


def test_only_the_owner_may_alter(admin, login):
    """Members of the owner's role may, too; for a partitioned table, each partition has an owner. The look tells it."""
    admin.execute("CREATE TABLE events (id bigint) PARTITION BY LIST (id)")
    admin.execute("CREATE TABLE part PARTITION OF events DEFAULT")
    role = sql.Identifier(login.user)
    admin.execute(sql.SQL("GRANT ALL ON events TO {}").format(role))
    with psycopg.connect(login.url, autocommit=True) as connection:
        for table in ("events", "part"):
            with pytest.raises(TargetError, match=rf"TARGET_NOT_ALTERED.*owner of public\.{table} .*{login.user}"):
                look_at_table(connection, ADD, encoded_columns(struct_of(COLUMNS)))
            admin.execute(sql.SQL("ALTER TABLE {} OWNER TO {}").format(sql.Identifier(table), role))
        look_at_table(connection, ADD, encoded_columns(struct_of(COLUMNS)))


def test_a_function_that_swallows_the_error_of_a_row_commits_nothing(admin, url):
    """The transaction has failed, as it has after any error of Postgres; with the row goes the column."""
    admin.execute("CREATE TABLE events (id integer)")
    with connect(url) as connection:
        connection.execute("CREATE TABLE other ()")
        with pytest.raises(psycopg.Error, match="out of range"):
            write_batch_in_tx(connection, ADD, typed_rows(COLUMNS, [(1 << 40, "a", None)]))
        assert connection.execute("COMMIT").statusmessage == "ROLLBACK"
    assert admin.execute("SELECT to_regclass('other')").fetchone() == (None,)
    assert columns_of(admin) == ["id"]
