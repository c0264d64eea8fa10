"""A column is widened when a value is too large for it, and not before."""

from __future__ import annotations

from decimal import Decimal

import pytest
from pyspark.sql import types as t
from support.committed_batch import rows_in
from support.typed_rows import commit_typed, typed_rows

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.sink.options.destination import destination
from pgonce.sink.writing.write_batch import write_batch_in_tx

COLUMNS = {"id": t.LongType(), "name": t.StringType(), "price": t.DecimalType(12, 2), "bits": t.StringType()}
TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5), price numeric(5,2), bits varbit(3))"
FITS = (1, "short", Decimal("999.99"), "101")
ADD = destination("events", schema_evolution="addColumns")


def types_of(admin) -> dict[str, str]:
    """The types of the table's columns."""
    return dict(
        admin.execute(
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'events'::regclass AND attnum > 0"
        ).fetchall()
    )


@pytest.mark.parametrize(
    ("to", "staged"), [(ADD, False), (destination("events", "upsert", ("id",), schema_evolution="addColumns"), True)]
)
@pytest.mark.parametrize(
    ("row", "wider"),
    [
        ((2, "longer", None, None), {"name": "text"}),
        ((2, "short   ", Decimal("1000.00"), None), {"price": "numeric(12,2)"}),
        ((2, None, Decimal("-1000.00"), "10101"), {"price": "numeric(12,2)", "bits": "bit varying"}),
        ((2, None, None, None), {}),
    ],
)
def test_a_column_is_widened_for_a_value_that_it_refuses(admin, url, to, row, wider, staged):
    """The others keep their types; all rows are there, whichever way they came."""
    admin.execute(TABLE)
    before = types_of(admin)
    rows = [FITS, (2, *row[1:])]
    commit_typed(url, 0, to, COLUMNS, rows, staged=staged)
    assert types_of(admin) == {**before, **wider}
    stored = [(key, name and name.rstrip(), price, bits) for key, name, price, bits in rows_in(admin, "events")]
    assert stored == [(key, name and name.rstrip(), price, bits) for key, name, price, bits in rows]
    told = admin.execute("SELECT change FROM pgonce.target_changes").fetchall()
    assert [name in str(told) for name in wider] == [True] * len(wider)


def test_a_column_keeps_its_collation_and_its_index(admin, url):
    """By another one, other values would be equal. Neither the table nor the index is written again."""
    admin.execute(
        "CREATE SCHEMA app; CREATE COLLATION app.\"By Letters\" (provider = libc, locale = 'C'); "
        'CREATE TABLE events (id bigint, name varchar(5) COLLATE app."By Letters" UNIQUE)'
    )
    files = "SELECT pg_relation_filenode('events'), pg_relation_filenode('events_name_key')"
    before = admin.execute(files).fetchone()
    commit_typed(url, 0, ADD, {"id": t.LongType(), "name": t.StringType()}, [(1, "longer")])
    assert types_of(admin)["name"] == "text"
    collation = "SELECT attcollation::regcollation::text FROM pg_attribute WHERE attrelid = 'events'::regclass"
    assert admin.execute(f"{collation} AND attnum = 2".encode()).fetchone() == ('app."By Letters"',)
    assert admin.execute(files).fetchone() == before


KEYED_BY_TEXT = {"id": t.StringType(), "name": t.StringType()}


@pytest.mark.parametrize("keys", [("id",), ()])
def test_a_key_whose_spaces_were_cut_is_not_widened(admin, url, keys):
    """The row of "abc  " is that of "abc" there. In a wider column it would not be found, and come twice."""
    admin.execute("CREATE TABLE events (id varchar(3) PRIMARY KEY, name text)")
    where = destination("events", "upsert", keys, schema_evolution="addColumns")
    commit_typed(url, 0, where, KEYED_BY_TEXT, [("abc  ", "one")])
    with pytest.raises(TargetError, match="TARGET_NOT_ALTERED.*would come twice") as refused:
        commit_typed(url, 1, where, KEYED_BY_TEXT, [("abcd", "two")])
    assert "ALTER TABLE" not in str(refused.value)
    assert types_of(admin)["id"] == "character varying(3)"


def test_a_row_whose_key_is_too_long_is_put_aside(admin, url):
    """As any other value for which a column is not widened; the other rows are written."""
    admin.execute("CREATE TABLE events (id varchar(3) PRIMARY KEY, name text)")
    where = destination("events", "upsert", schema_evolution="addColumns", dead_letters=True)
    commit_typed(url, 0, where, KEYED_BY_TEXT, [("abcd", "two"), ("abc", "one")])
    assert rows_in(admin, "events") == [("abc", "one")]
    assert admin.execute("SELECT row_data ->> 'id', code FROM pgonce.dead_letters").fetchall() == [("abcd", "22001")]


def test_a_value_that_is_refused_for_another_reason_is_refused_as_ever(admin, url):
    """No column was too narrow: it goes into an integer."""
    admin.execute("CREATE TABLE events (id integer, name varchar(5))")
    with pytest.raises(TargetError, match=r"\[VALUE_NOT_STORABLE\].*22003"):
        commit_typed(url, 0, ADD, {"id": t.LongType(), "name": t.StringType()}, [(1 << 40, "a")])


@pytest.mark.parametrize(
    ("kind", "element", "fits", "too_large"),
    [
        ("varchar(3)[]", t.StringType(), ["abc"], ["long"]),
        ("numeric(5,2)[]", t.DecimalType(5, 2), [Decimal("1.00")], None),
        ("varbit(3)[]", t.StringType(), ["101"], ["1010"]),
    ],
)
def test_an_array_is_never_widened_and_keeps_no_other_column_from_it(admin, url, kind, element, fits, too_large):
    """A value that is too large for its elements is refused in Postgres's words."""
    admin.execute(f"CREATE TABLE events (id bigint, name varchar(5), parts {kind})".encode())
    columns = {"id": t.LongType(), "name": t.StringType(), "parts": t.ArrayType(element)}
    commit_typed(url, 0, ADD, columns, [(1, "longer", fits)])
    assert types_of(admin)["name"] == "text"
    if too_large:
        with pytest.raises(TargetError, match=r"\[VALUE_NOT_STORABLE\].*22001"):
            commit_typed(url, 1, ADD, columns, [(2, "a", too_large)])
    assert rows_in(admin, "events") == [(1, "longer", fits)]


BITS = {"id": t.LongType(), "bits": t.StringType()}


def test_a_text_that_is_no_bit_string_is_put_aside_and_the_column_is_widened_for_the_others(admin, url):
    """The wider column takes those that are bit strings, however these are written."""
    admin.execute("CREATE TABLE events (id bigint, bits varbit(3))")
    where = destination("events", schema_evolution="addColumns", dead_letters=True)
    commit_typed(url, 0, where, BITS, [(1, "10101"), (2, "abc"), (3, "xF"), (4, "b0")])
    assert rows_in(admin, "events") == [(1, "10101"), (3, "1111"), (4, "0")]
    letters = "SELECT row_data ->> 'bits', column_name, code FROM pgonce.dead_letters"
    assert admin.execute(letters).fetchall() == [("abc", "bits", "22P02")]


@pytest.mark.parametrize("view", [False, True])
def test_a_function_that_swallows_the_error_commits_nothing(admin, url, view):
    """The transaction has failed, as it has after any error of Postgres."""
    admin.execute("CREATE TABLE events (id integer, name varchar(5))")
    if view:
        admin.execute("CREATE VIEW report AS SELECT name FROM events")
    rows = typed_rows({"id": t.LongType(), "name": t.StringType()}, [(1 << 40, "a") if not view else (1, "longer")])
    with connect(url) as connection:
        connection.execute("CREATE TABLE other ()")
        with pytest.raises(Exception, match=r"out of range|report"):
            write_batch_in_tx(connection, ADD, rows)
        assert connection.execute("COMMIT").statusmessage == "ROLLBACK"
    assert admin.execute("SELECT to_regclass('other')").fetchone() == (None,)


LETTERS = destination("events", schema_evolution="addColumns", dead_letters=True)


def put_aside(admin):
    """The ids of the dead letters, and why they are such."""
    return admin.execute(
        "SELECT (row_data ->> 'id')::int, column_name, code FROM pgonce.dead_letters ORDER BY 1"
    ).fetchall()


@pytest.mark.parametrize("staged", [False, True])
def test_a_value_too_long_for_a_column_that_cannot_be_widened_is_put_aside(admin, url, staged):
    """As it is without addColumns; another column is widened all the same."""
    admin.execute(TABLE)
    admin.execute("CREATE VIEW report AS SELECT name FROM events")
    rows = [FITS, (2, "longer", None, None), (3, None, Decimal("1000.00"), None), (4, "longer", Decimal(2000), None)]
    commit_typed(url, 0, LETTERS, COLUMNS, rows, staged=staged)
    assert put_aside(admin) == [(2, "name", "22001"), (4, "name", "22001")]
    assert rows_in(admin, "events") == [FITS, rows[2]]
    assert types_of(admin)["price"] == "numeric(12,2)"


def test_a_column_that_the_rows_need_and_nobody_may_add_still_stops_the_batch(admin, url):
    """That is about every row."""
    admin.execute(
        "CREATE TABLE whole (id bigint, name varchar(5)) PARTITION BY LIST (id); "
        "CREATE TABLE events PARTITION OF whole DEFAULT"
    )
    with pytest.raises(TargetError, match="TARGET_NOT_ALTERED"):
        commit_typed(url, 0, LETTERS, COLUMNS, [FITS, (2, "longer", None, None)])


@pytest.mark.parametrize(("mode", "staged"), [("append", False), ("upsert", True)])
@pytest.mark.parametrize(
    ("constraint", "bad"),
    [("REFERENCES parents", (2, "b", 9)), ("UNIQUE", (2, "b", 7))],
)
def test_a_deferred_constraint_is_met_before_commit(admin, url, mode, staged, constraint, bad):
    """So that the row which it refuses is put aside, whether the table may be altered or not."""
    admin.execute("CREATE TABLE parents (id bigint PRIMARY KEY); INSERT INTO parents VALUES (1), (7)")
    admin.execute(
        f"CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5), ref bigint {constraint} "
        "DEFERRABLE INITIALLY DEFERRED); INSERT INTO events VALUES (0, 'x', 7)"
    )
    columns = {"id": t.LongType(), "name": t.StringType(), "ref": t.LongType()}
    keys = ("id",) if mode == "upsert" else ()
    where = destination("events", mode, keys, schema_evolution="addColumns", dead_letters=True)
    commit_typed(url, 0, where, columns, [(1, "a", 1), bad], staged=staged)
    assert rows_in(admin, "events") == [(0, "x", 7), (1, "a", 1)]
    assert [(key, code[:2]) for key, _, code in put_aside(admin)] == [(2, "23")]


@pytest.mark.parametrize("kind", ["varchar(5)", "varbit(5)"])
def test_a_column_is_not_widened_for_what_stands_for_an_unread_value(admin, url, kind):
    """The stored value stays, and another column that is too narrow is widened."""
    admin.execute(f"CREATE TABLE events (id bigint PRIMARY KEY, bits {kind}, name varchar(5))".encode())
    admin.execute("INSERT INTO events VALUES (1, '101', 'short')")
    where = destination("events", "upsert", schema_evolution="addColumns", order_by="id", keep_where="unavailable")
    commit_typed(url, 0, where, {**BITS, "name": t.StringType()}, [(1, "unavailable", "longer")])
    limited = {"varchar(5)": "character varying(5)", "varbit(5)": "bit varying(5)"}[kind]
    assert types_of(admin) == {"id": "bigint", "bits": limited, "name": "text"}
    assert rows_in(admin, "events") == [(1, "101", "longer")]
