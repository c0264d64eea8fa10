"""
Settings of a role, a database or url change nothing about what is stored and read, and stay the user's for his SQL.

Covers: offsets_store.postgres.search_path.
"""

from __future__ import annotations

import datetime as dt

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import types as t
from support.fixtures.postgres import url_with
from support.typed_rows import commit_typed

from pgonce.offsets_store.postgres.search_path import LocalSettings
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.options.destination import destination

ODD = {
    "DateStyle": "German",
    "IntervalStyle": "sql_standard",
    "TimeZone": "America/New_York",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
    "standard_conforming_strings": "off",
    "quote_all_identifiers": "on",
    "array_nulls": "off",
    "transform_null_equals": "on",
}
TABLE = (
    "CREATE TABLE events (id bigint PRIMARY KEY, at timestamptz, day date, for_a interval, x float8, raw bytea, "
    "word varchar(3))"
)
KINDS = {
    "id": t.LongType(),
    "at": t.TimestampType(),
    "day": t.DateType(),
    "for_a": t.DayTimeIntervalType(),
    "x": t.DoubleType(),
    "raw": t.BinaryType(),
    "word": t.StringType(),
}


def a_row(number, word="abc"):
    """A row whose texts differ between the settings; the interval means something else in each style."""
    at = dt.datetime(2026, 2, 1, 12, tzinfo=dt.timezone.utc)
    return (number, at, at.date(), dt.timedelta(days=-1, seconds=-1), 0.1 + 0.2, b"\x00\\a", word)


@pytest.fixture
def odd(admin):
    """The settings that this server has; from 19 on, strings are always standard ones."""
    has_no_other = {"standard_conforming_strings"} if admin.info.server_version >= 190000 else set()
    return {name: value for name, value in ODD.items() if name not in has_no_other}


@pytest.fixture
def odd_url(url, admin, odd):
    """A database whose settings are all others than pgonce's."""
    name = sql.Identifier(admin.info.dbname)
    for setting, value in odd.items():
        admin.execute(sql.SQL("ALTER DATABASE {} SET {} = {}").format(name, sql.Identifier(setting.lower()), value))
    # Another string, and so a pool of its own, whose connections begin with these settings.
    return url_with(url, application_name="odd")


@pytest.mark.parametrize(
    ("mode", "staged"), [("append", False), ("upsert", True), ("apply", False), ("complete", True)]
)
def test_every_mode_writes_the_same(odd_url, admin, mode, staged):
    """Each way of writing goes on, batch after batch, and the values are those that were sent."""
    admin.execute(TABLE)
    to, kinds, more = destination("events"), KINDS, ()
    if mode in ("upsert", "complete"):
        to = destination("events", mode)
    elif mode == "apply":
        to = destination("events", mode, order_by="at", delete_when="gone", only_newer=True)
        kinds, more = {**KINDS, "gone": t.BooleanType()}, (False,)
    for number in range(3):
        assert commit_typed(odd_url, number, to, kinds, [(*a_row(number), *more)], staged=staged) is Verdict.NEW
    assert admin.execute("SELECT id, at, day, for_a, x, raw, word FROM events WHERE id = 2").fetchone() == a_row(2)


def test_a_row_that_was_put_aside_comes_back_as_it_was(odd_url, admin, pgonce):
    """A dead letter has the row in a form that a replay under other settings reads as the same values."""
    admin.execute(TABLE)
    to = destination("events", dead_letters=True)
    commit_typed(odd_url, 0, to, KINDS, [a_row(1), a_row(2, word="too long")])
    admin.execute("ALTER TABLE events ALTER word TYPE text")
    done = pgonce("dead-letters", "q1", "--replay", "--yes", "--url", url_with(odd_url))
    assert done.exit_code == 0, done.output
    found = admin.execute("SELECT id, at, day, for_a, x, raw, word FROM events ORDER BY id").fetchall()
    assert found == [a_row(1), a_row(2, word="too long")]


def test_a_trigger_has_the_users_settings(odd_url, admin, odd):
    """What the user's tables do with their rows depends on the user's settings, and on none of ours."""
    admin.execute("CREATE TABLE events (id bigint, seen text)")
    shown = ", ".join(f"current_setting('{name}')" for name in odd)
    admin.execute(
        f"CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.seen = concat_ws('|', {shown}); "
        "RETURN NEW; END $$; CREATE TRIGGER look BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION look()"
    )
    commit_typed(odd_url, 0, destination("events"), {"id": t.LongType()}, [(1,)])
    (seen,) = admin.execute("SELECT seen FROM events").fetchone()
    assert seen.split("|") == ["German, DMY", *list(odd.values())[1:]]


def test_a_deferred_trigger_has_them_too(odd_url, admin):
    """At COMMIT the user's settings are in force again."""
    admin.execute("CREATE TABLE events (id bigint); CREATE TABLE seen (style text)")
    admin.execute(
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO public.seen VALUES (current_setting('DateStyle')); RETURN NULL; END $$; "
        "CREATE CONSTRAINT TRIGGER look AFTER INSERT ON events DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION look()"
    )
    commit_typed(odd_url, 0, destination("events"), {"id": t.LongType()}, [(1,)])
    assert admin.execute("SELECT style FROM seen").fetchone() == ("German, DMY",)


OURS = LocalSettings(extra_float_digits="1", search_path="pg_catalog, pg_temp")
LOOK = "SELECT pg_catalog.current_setting('extra_float_digits'), pg_catalog.current_setting('search_path')"
USERS = ("-3", "public, pg_catalog")


@pytest.fixture
def connection(url):
    """A connection whose user has set both settings, in a transaction."""
    with psycopg.connect(url) as opened:
        opened.execute("SET extra_float_digits = -3")
        opened.execute("SET search_path = public, pg_catalog")
        opened.commit()
        yield opened


def test_the_statement_sees_ours(connection):
    """In one round trip, after which the cursor is at the statement's answer."""
    assert OURS.execute_in_tx(connection, sql.SQL(LOOK)).fetchone() == ("1", "pg_catalog, pg_temp")
    assert connection.execute(LOOK).fetchone() == USERS


def test_settings_around_other_settings_bring_back_their_own(connection):
    """One may stand around another that sets something else: each brings back its own."""
    costs = LocalSettings(seq_page_cost="7")
    OURS.execute_in_tx(connection, costs.around(sql.SQL("SELECT 1")))
    asked = connection.execute(f"{LOOK}, pg_catalog.current_setting('seq_page_cost')".encode()).fetchone()
    assert asked == (*USERS, "1")


def test_a_statement_that_fails(connection):
    """The savepoint that is rolled back brings the user's settings back."""
    with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
        OURS.execute_in_tx(connection, sql.SQL("SELECT 1 / 0"))
    assert connection.execute(LOOK).fetchone() == USERS
