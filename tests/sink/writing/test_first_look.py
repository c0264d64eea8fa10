"""
What Postgres says of a target before a row is computed, and what it must not cost anybody.

Covers: sink.writing.table.table_name.
"""

from __future__ import annotations

import itertools
import time

import psycopg
import pytest
from pyspark.sql import types as t
from support.fixtures.driver import wait_until
from support.typed_rows import struct_of
from support.with_rooms import look_once

from pgonce.offsets_store.errors import ConnectError, TargetError
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import destination

COLUMNS = encoded_columns(struct_of({"id": t.LongType(), "name": t.StringType()}))
TABLE = "CREATE TABLE events (id bigint, name text)"

_queries = itertools.count()


def look(url, table="events", mode="append", keys=(), query=None, **arguments):
    """A look of a query of its own."""
    of_look = {"at_the_door": arguments.pop("at_the_door", True)}
    to = destination(table, mode, keys, None, **arguments)
    look_once(next(_queries) if query is None else query, url, to, COLUMNS, **of_look)


def define(admin, ddl):
    """Make these tables in a database that has no other."""
    admin.execute(f"DROP SCHEMA IF EXISTS sales CASCADE; DROP SCHEMA public CASCADE; CREATE SCHEMA public; {ddl}")


def test_a_table_without_a_column_for_the_position_in_kafka(admin, url):
    """In real time rows have it in any case: the error says how the table gets on without it."""
    define(admin, TABLE)
    with pytest.raises(TargetError, match="COLUMN_UNKNOWN.*writePositions=false"):
        look_once(next(_queries), url, destination("events"), encoded_columns(struct_of({"topic": t.StringType()})))


SHORT = "CREATE TABLE events (id bigint)"
ADDS = {"schema_evolution": "addColumns"}


def test_what_the_commit_would_refuse_is_refused_before(admin, url):
    """A table that is missing, does not fit or cannot be altered needs no row to be found out: with what to do."""
    for ddl, arguments, says in (
        ("SELECT", {}, r"\[TARGET_MISSING\].*public\.events"),
        ("CREATE VIEW events AS SELECT 1 AS id", {}, r"\[TARGET_NOT_A_TABLE\]"),
        ("CREATE UNLOGGED TABLE events (id bigint, name text)", {}, r"\[TARGET_NOT_DURABLE\]"),
        ("CREATE TABLE events (id boolean, name text)", {}, r"\[TYPE_MISMATCH\].*'id'"),
        (SHORT, {}, r"\[COLUMN_UNKNOWN\].*'name'"),
        (TABLE, {"mode": "upsert", "keys": ("ident",)}, r"\[KEY_UNKNOWN\].*'ident'"),
        (TABLE, {"table": "a.b.c"}, r"\[BAD_TABLE_NAME\]"),
        ("SELECT", {"table": "sales.events", "create_table": True}, r"\[TARGET_MISSING\]"),
        ("SELECT", {"table": "sales.events"}, r"\[TARGET_MISSING\]"),
        # Postgres reads a name without quotes in lower case, which is not what its table may be called.
        ('CREATE TABLE "Events" (id bigint)', {"table": "Events"}, r'\[TARGET_MISSING\].*write table=public\."Events"'),
        (SHORT, {"table": '"EVENTS"'}, r"\[TARGET_MISSING\].*write table=public\.events"),
        ("CREATE SCHEMA sales; CREATE TABLE sales.events ()", {}, r"\[TARGET_MISSING\].*write table=sales\.events"),
        ("CREATE VIEW events AS SELECT 1 AS id", ADDS, "TARGET_NOT_A_TABLE"),
        ("CREATE TABLE events (id boolean)", ADDS, r"TYPE_MISMATCH.*ALTER COLUMN \"id\" TYPE bigint"),
        (
            SHORT,
            {"mode": "upsert", "keys": ("id", "NAME"), **ADDS},
            r'TARGET_NOT_ALTERED.* keys.*ADD COLUMN "name" text',
        ),
        (
            "CREATE TABLE whole (id bigint) PARTITION BY LIST (id); CREATE TABLE events PARTITION OF whole DEFAULT",
            ADDS,
            r"TARGET_NOT_ALTERED.*ALTER TABLE public\.whole ADD COLUMN \"name\" text",
        ),
    ):
        define(admin, ddl)
        with pytest.raises(TargetError, match=says):
            look(url, **arguments)


def test_what_the_commit_will_alter_or_leave_out_passes(admin, url):
    """Nothing is altered by looking, and a view is in no new column's way."""
    for ddl, evolution in ((SHORT, "ignoreExtra"), (f"{SHORT}; CREATE VIEW v AS TABLE events", "addColumns")):
        define(admin, ddl)
        before = admin.execute("SELECT count(*) FROM pg_attribute").fetchone()
        look(url, schema_evolution=evolution)
        assert admin.execute("SELECT count(*) FROM pg_attribute").fetchone() == before


def test_a_query_is_looked_at_once_unless_it_was_refused(admin, url):
    """Later batches cost nothing; what changed since is for the commit to see. A table that was made since is found."""
    with pytest.raises(TargetError):
        look(url, query="q")
    admin.execute(TABLE)
    look(url, query="q")
    admin.execute("DROP TABLE events")
    look(url, query="q")


def test_a_look_waits_for_nobody_and_leaves_nothing(admin, url, observer):
    """Not for a table that somebody alters, nor does its session stay."""
    admin.execute(TABLE)
    with psycopg.connect(url) as other:
        other.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        look(url + ("&" if "?" in url else "?") + "application_name=looking")
        assert time.monotonic() - began < 5
    # A session that is told to end is seen until its process has ended.
    here = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'looking'"
    assert wait_until(lambda: observer.execute(here).fetchone() == (0,))


def test_a_login_that_is_refused_is_said_at_once_or_left_to_the_commit(url, login):
    """At a query's first batch it is a mistake; later a password may just be being changed, or a server be away."""
    wrong = login.url.replace(login.url.partition("//")[2].partition("@")[0], f"{login.user}:wrong")
    with pytest.raises(ConnectError, match=r"\[CONNECT_REFUSED\]"):
        look(wrong)
    look(wrong, at_the_door=False)
    look("postgresql://nobody@127.0.0.1:1/nowhere")
