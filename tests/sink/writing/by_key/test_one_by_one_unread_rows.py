"""A change that lacks a value is never written as a new row without it."""

from __future__ import annotations

import logging

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema
from support.applied_changes import DELETE, PLAIN, WRITE, apply, changes, stored
from support.sent_rows import publish
from support.with_rooms import reader_of

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.options.destination import destination

TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)"
UNREAD = {"keep_where": "?"}


@pytest.fixture(autouse=True)
def events(admin):
    """A table with a primary key."""
    admin.execute(TABLE.encode())


def letters(admin):
    """The rows that were put aside."""
    return admin.execute("SELECT row_data ->> 'seq', code, column_name FROM pgonce.dead_letters ORDER BY 1").fetchall()


@pytest.mark.parametrize("only_newer", [False, True])
def test_it_is_put_aside_if_there_are_dead_letters(only_newer, url, admin):
    """All changes of its key are, as none has the value, which comes later; the others are written."""
    with pytest.raises(TargetError, match=r"VALUE_NOT_READ.*\(name\)"):
        apply(url, (1, "?", 20, WRITE), only_newer=only_newer, **UNREAD)
    assert stored(admin) == []
    how = {"only_newer": only_newer, "dead_letters": True, "transport": "both", **UNREAD}
    rows = [(1, "?", 20, WRITE), (1, "?", 21, WRITE), (2, "b", 1, WRITE), (3, "c", 1, WRITE), (3, "?", 2, WRITE)]
    assert apply(url, *rows, **how) == {"written": 3, "dead_letters": 2}
    assert stored(admin) == [(2, "b", 1), (3, "c", 2)]
    assert letters(admin) == [("20", "VALUE_NOT_READ", "name"), ("21", "VALUE_NOT_READ", "name")]


@pytest.mark.parametrize("others", [[], [(2, "b", 1, WRITE)]], ids=["alone", "among others"])
def test_a_column_that_takes_no_null_changes_nothing(others, url, admin):
    """Postgres would refuse a null that the source has not sent, and a batch of such rows alone would stop."""
    admin.execute("ALTER TABLE events ALTER COLUMN name SET NOT NULL")
    with pytest.raises(TargetError, match=r"VALUE_NOT_READ.*\(name\)"):
        apply(url, (1, "?", 20, WRITE), *others, **UNREAD)
    apply(url, (1, "?", 20, WRITE), *others, dead_letters=True, **UNREAD)
    assert letters(admin) == [("20", "VALUE_NOT_READ", "name")]
    # A row that has the value keeps it.
    apply(url, (1, "a", 21, WRITE), **UNREAD)
    apply(url, (1, "?", 22, WRITE), **UNREAD)
    assert (1, "a", 22) in stored(admin)


def test_it_is_put_aside_where_columns_may_be_added_too(url, admin):
    """And it stops the batch where rows are not put aside."""
    how = {"dead_letters": True, "schema_evolution": "addColumns", **UNREAD}
    assert apply(url, (1, "?", 20, WRITE), (2, "b", 1, WRITE), **how) == {"written": 1, "dead_letters": 1}
    assert stored(admin) == [(2, "b", 1)]
    assert letters(admin) == [("20", "VALUE_NOT_READ", "name")]
    with pytest.raises(TargetError, match="VALUE_NOT_READ"):
        apply(url, (1, "?", 20, WRITE), schema_evolution="addColumns", **UNREAD)


def test_a_column_that_updates_leave_alone_has_the_first_value_that_was_read(url, admin):
    """Neither the null of a change before it, nor a value of one after it."""
    rows = [(1, "?", 1, WRITE), (1, "long", 2, WRITE), (1, "later", 3, WRITE)]
    assert apply(url, *rows, update_columns=["seq"], dead_letters=True, **UNREAD)["dead_letters"] == 1
    assert (stored(admin), letters(admin)) == ([(1, "long", 3)], [("1", "VALUE_NOT_READ", "name")])


def test_a_change_before_the_delete_of_its_key_is_not_put_aside(url, admin):
    """Only what comes after the delete would have become a row."""
    apply(url, (1, "a", 1, WRITE))
    rows = [(1, "?", 2, WRITE), (1, None, 3, DELETE), (1, "?", 4, WRITE), (2, "b", 1, WRITE)]
    assert apply(url, *rows, dead_letters=True, **UNREAD) == {
        "written": 2, "deleted": 1, "dead_letters": 1
    }  # fmt: skip
    assert stored(admin) == [(2, "b", 1)]
    assert letters(admin) == [("4", "VALUE_NOT_READ", "name")]


ENVELOPE = t.StructType([*PLAIN.fields[:3], t.StructField("pgonce_operation", t.StringType()), PLAIN.fields[3]])


def test_an_insert_without_a_value_is_written_and_counted(url, admin, caplog):
    """Of a row whose key has changed, no change has the value: Debezium calls it an insert."""
    struct = t.StructType([*ENVELOPE.fields[:4], t.StructField("pgonce_deleted", t.BooleanType())])
    how = {"delete_when": None, "change_feed": "debezium", "struct": struct, **UNREAD}
    with caplog.at_level(logging.WARNING, "pgonce"):
        result = publish(
            url, "inline", struct, [(1, "?", 2, "c", WRITE), (1, "?", 3, "u", WRITE), (2, "b", 4, "c", WRITE)],
            "apply", order_by="seq", change_feed="debezium", **UNREAD,
        )  # fmt: skip
    assert (result.counts["written"], result.counts["superseded"], result.counts["not_read"]) == (3, 0, 2)
    assert stored(admin) == [(1, None, 3), (2, "b", 4)]
    assert "2 rows are written to public.events" in caplog.text
    with pytest.raises(TargetError, match="VALUE_NOT_READ"):
        apply(url, (3, "?", 2, "u", WRITE), **how)


@pytest.mark.parametrize(
    "column", ["text NOT NULL DEFAULT ''", "text CHECK (name IS NOT NULL)", "letters", "text NOT NULL"]
)
def test_a_change_is_too_early_for_any_kind_of_column_that_takes_no_null(url, admin, column):
    """Postgres would say only that a constraint refuses the row, and a batch of such rows would stop the query."""
    admin.execute("CREATE DOMAIN letters AS text CHECK (VALUE IS NOT NULL)")
    admin.execute(f"ALTER TABLE events DROP COLUMN name; ALTER TABLE events ADD COLUMN name {column}".encode())
    assert apply(url, (1, "?", 20, WRITE), dead_letters=True, **UNREAD) == {"dead_letters": 1}
    assert letters(admin) == [("20", "VALUE_NOT_READ", "name")]


@pytest.mark.parametrize("only_newer", [False, True])
def test_a_stored_null_is_not_the_value_that_was_not_read(url, admin, caplog, only_newer):
    """The row lacks it and goes on to lack it, which is counted where the change is written."""
    apply(url, (1, None, 1, WRITE), (2, "b", 1, WRITE), (3, None, 9, WRITE))
    with caplog.at_level(logging.WARNING, "pgonce"):
        counts = apply(url, *[(key, "?", 5, WRITE) for key in (1, 2, 3)], only_newer=only_newer, **UNREAD)
    left_alone = {"written": 2, "passed_over": 1, "not_read": 1} if only_newer else {"written": 3, "not_read": 2}
    assert counts == left_alone
    assert "without a value" in caplog.text
    assert stored(admin)[:2] == [(1, None, 5), (2, "b", 5)]


def test_a_null_in_a_column_that_updates_leave_alone_is_not_counted(url):
    """The change would not have written the value."""
    apply(url, (1, None, 1, WRITE))
    assert apply(url, (1, "?", 5, WRITE), update_columns=["seq"], **UNREAD) == {"written": 1}


def of_a_source_with_op(op):
    """An update of a row whose value was not read, and whose own column ``op`` has this value, with its columns."""
    row = t.StructType([*PLAIN.fields[:2], t.StructField("op", t.StringType())])
    source = t.StructType([t.StructField("seq", t.LongType())])
    frame = t.StructType([
        t.StructField("before", row), t.StructField("after", row), t.StructField("op", t.StringType()),
        t.StructField("source", source),
    ])  # fmt: skip
    reader = reader_of(destination("events", "apply", order_by="source.seq", change_feed="debezium"), frame)
    event = {"before": None, "after": {"id": 1, "name": "?", "op": op}, "op": "u", "source": {"seq": 1}}
    read = reader.read(pa.RecordBatch.from_pylist([event], schema=to_arrow_schema(frame)))
    return reader.struct_type, [tuple(row.values()) for row in read.to_pylist()]


def test_a_column_of_the_source_that_is_called_op_is_no_operation(url, admin):
    """An update whose row is not there is refused, although this column has what an insert would be called."""
    admin.execute("ALTER TABLE events ADD COLUMN op text")
    struct, rows = of_a_source_with_op("c")
    with pytest.raises(TargetError, match="VALUE_NOT_READ"):
        publish(url, "inline", struct, rows, "apply", order_by="source.seq", change_feed="debezium", **UNREAD)
    assert stored(admin) == []


def test_a_column_of_the_source_that_is_called_op_is_not_left_out(url, admin):
    """A table that lacks it is refused, or gets it, as for any other column; the operation itself is not added."""
    struct, rows = of_a_source_with_op("insert")
    how = {"order_by": "source.seq", "change_feed": "debezium"}
    with pytest.raises(TargetError, match=r"COLUMN_UNKNOWN.*'op'"):
        publish(url, "inline", struct, rows, "apply", **how)
    publish(url, "inline", struct, rows, "apply", schema_evolution="addColumns", **how)
    assert stored(admin) == [(1, "?", 1, "insert")]


def test_an_upsert_without_a_value_is_refused_too(url, admin):
    """The option means the same where no row deletes."""
    struct = t.StructType(PLAIN.fields[:3])
    with pytest.raises(TargetError, match="VALUE_NOT_READ"):
        publish(url, "inline", struct, [(1, "?", 1)], "upsert", order_by="seq", **UNREAD)
    publish(url, "inline", struct, [(1, "a", 1), (1, "?", 2)], "upsert", order_by="seq", **UNREAD)
    assert stored(admin) == [(1, "a", 2)]


def test_a_column_may_be_called_as_one_of_ours(url, admin):
    """The table of changes has columns of its own, whose names no column of a user has."""
    names = ["pgonce_new", "pgonce_rank", "pgonce_order", "pgonce_place", "pgonce_unread_0", "pgonce_deleted"]
    admin.execute("DROP TABLE events")
    columns = ", ".join(f"{name} text" for name in names)
    admin.execute(f"CREATE TABLE events (id bigint PRIMARY KEY, {columns}, seq bigint)".encode())
    struct = changes(id=t.LongType(), **dict.fromkeys(names, t.StringType()), seq=t.LongType())
    apply(url, (1, *names, 1, WRITE), struct=struct, only_newer=True, **UNREAD)
    apply(url, (1, *["?"] * len(names), 2, WRITE), struct=struct, only_newer=True, **UNREAD)
    assert stored(admin) == [(1, *names, 2)]
    apply(url, (1, *[None] * len(names), 3, DELETE), struct=struct, only_newer=True, **UNREAD)
    assert stored(admin) == []


def test_the_transaction_cannot_be_committed_without_the_rows(url):
    """A refused batch leaves its transaction failed, so that a function cannot commit without these rows."""
    with psycopg.connect(url) as connection:
        with pytest.raises(TargetError):
            apply(connection, (1, "?", 20, WRITE), **UNREAD)
        assert connection.info.transaction_status.name == "INERROR"


def test_a_delete_may_lack_a_value_too(url, admin):
    """It needs none, though the placeholder is no value of the column's type."""
    admin.execute("ALTER TABLE events ALTER COLUMN name TYPE jsonb USING to_jsonb(name)")
    apply(url, (1, '{"a": 1}', 1, WRITE), (2, '{"b": 1}', 1, WRITE))
    assert apply(url, (1, "?", 2, DELETE), **UNREAD)["deleted"] == 1
    assert apply(url, (2, "?", 2, DELETE), (3, "{}", 2, WRITE), **UNREAD)["deleted"] == 1
    assert [row[0] for row in stored(admin)] == [3]


def test_a_row_stays_if_updates_change_nothing(url, admin):
    """There is nothing to assign then, read or not."""
    apply(url, (1, "a", 1, WRITE))
    apply(url, (1, "?", 2, WRITE), update_columns=["id"], **UNREAD)
    assert stored(admin) == [(1, "a", 1)]
