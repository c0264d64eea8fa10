"""
Settings of a role, a database or url change nothing about what is stored and read, and stay the user's for his SQL.

Covers: offsets_store.postgres.settings, offsets_store.postgres.search_path.
"""

from __future__ import annotations

import datetime as dt
import json

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import types as t
from support.fixtures.postgres import url_with
from support.progress_events import heard
from support.recoveries import recover_at_once
from support.typed_rows import commit_typed
from typer.testing import CliRunner

from pgonce import OffsetsStore
from pgonce.cli.main import app
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.postgres.settings import LocalSettings
from pgonce.offsets_store.preflight.answers import Holds
from pgonce.offsets_store.preflight.check import check_server
from pgonce.offsets_store.progress.event import store_progress_in_tx
from pgonce.offsets_store.recovery.doctor import Finding, examine
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
def odd_url(url, admin):
    """A database whose settings are all others than pgonce's; a ledger is there."""
    ensure_ledger(url)
    name = sql.Identifier(admin.info.dbname)
    for setting, value in ODD.items():
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


def test_a_row_that_was_put_aside_comes_back_as_it_was(odd_url, admin):
    """A dead letter has the row in a form that a replay under other settings reads as the same values."""
    admin.execute(TABLE)
    to = destination("events", dead_letters=True)
    commit_typed(odd_url, 0, to, KINDS, [a_row(1), a_row(2, word="too long")])
    admin.execute("ALTER TABLE events ALTER word TYPE text")
    done = CliRunner().invoke(app, ["dead-letters", "q1", "--replay", "--yes", "--url", url_with(odd_url)])
    assert done.exit_code == 0, done.output
    found = admin.execute("SELECT id, at, day, for_a, x, raw, word FROM events ORDER BY id").fetchall()
    assert found == [a_row(1), a_row(2, word="too long")]


def test_the_ledger_is_read(odd_url, admin):
    """The store and the commands read times, whatever the style in which Postgres would write them."""
    admin.execute("CREATE TABLE events (id bigint)")
    commit_typed(odd_url, 0, destination("events"), {"id": t.LongType()}, [(1,)])
    (batch,) = OffsetsStore(odd_url).history("q1")
    assert abs(dt.datetime.now(dt.timezone.utc) - batch.committed_at) < dt.timedelta(minutes=5)
    for command in (["status"], ["status", "--json"], ["history", "q1"], ["offsets", "q1"]):
        shown = CliRunner().invoke(app, [*command, "--url", odd_url])
        assert shown.exit_code == 0, (command, shown.output)


def test_nothing_else_is_answered_by_check(url, odd_url, admin):
    """What holds with other settings is what holds here."""
    admin.execute("CREATE TABLE events (id bigint)")
    usual = {one.name: one.holds for one in check_server(url)}
    assert {one.name: one.holds for one in check_server(odd_url)} == usual
    shown = CliRunner().invoke(app, ["check", odd_url, "--table", "events", "--json"])
    table = next(one for one in json.loads(shown.stdout) if one["name"] == "table")
    assert table["holds"] == Holds.YES.value


def test_a_checkpoint_is_recovered(behind, odd_url):
    """Doctor and recover read the ledger, and what they write agrees with it."""
    assert examine(str(behind), odd_url).finding is Finding.RECOVERABLE
    recover_at_once(behind, odd_url)
    assert examine(str(behind), odd_url).finding is Finding.AGREE


def test_the_listener_notes_what_it_hears(odd_url, admin):
    """An event is stored, with its time."""
    event = heard(end={"0": {"t": {"0": 7}}})
    with engine_for(odd_url).begin() as connection:
        assert store_progress_in_tx(connection, event) is None
    assert admin.execute("SELECT progress_at FROM pgonce.progress").fetchone() == (event.progress_at,)


def test_a_trigger_has_the_users_settings(odd_url, admin):
    """What the user's tables do with their rows depends on the user's settings, and on none of ours."""
    admin.execute("CREATE TABLE events (id bigint, seen text)")
    shown = ", ".join(f"current_setting('{name}')" for name in ODD)
    admin.execute(
        f"CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN NEW.seen = concat_ws('|', {shown}); "
        "RETURN NEW; END $$; CREATE TRIGGER look BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION look()"
    )
    commit_typed(odd_url, 0, destination("events"), {"id": t.LongType()}, [(1,)])
    (seen,) = admin.execute("SELECT seen FROM events").fetchone()
    assert seen.split("|") == ["German, DMY", *list(ODD.values())[1:]]


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


def test_the_session_has_them_afterwards(odd_url):
    """Behind a pooler the session is somebody else's."""
    ensure_ledger(odd_url)
    with psycopg.connect(odd_url) as connection:
        assert connection.execute("SHOW datestyle").fetchone() == ("German, DMY",)


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
    cursor = connection.cursor()
    OURS.execute_in_tx(cursor, sql.SQL(LOOK))
    assert cursor.fetchone() == ("1", "pg_catalog, pg_temp")
    assert connection.execute(LOOK).fetchone() == USERS


def test_one_within_another(connection):
    """One may stand around another that sets something else: each brings back its own."""
    costs = LocalSettings(seq_page_cost="7")
    cursor = connection.cursor()
    OURS.execute_in_tx(cursor, costs.around(sql.SQL("SELECT 1")))
    asked = connection.execute(f"{LOOK}, pg_catalog.current_setting('seq_page_cost')".encode()).fetchone()
    assert asked == (*USERS, "1")


def test_a_statement_that_fails(connection):
    """The savepoint that is rolled back brings the user's settings back."""
    with pytest.raises(psycopg.errors.DivisionByZero), connection.transaction():
        OURS.execute_in_tx(connection.cursor(), sql.SQL("SELECT 1 / 0"))
    assert connection.execute(LOOK).fetchone() == USERS


def test_after_the_transaction(connection):
    """The session has nothing of it."""
    OURS.execute_in_tx(connection.cursor(), sql.SQL("SELECT 1"))
    connection.commit()
    assert connection.execute(LOOK).fetchone() == USERS
