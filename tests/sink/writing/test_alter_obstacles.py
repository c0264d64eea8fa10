"""What is in the way of altering a table is named before anybody waits for it, with the statement to run."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.writing.alter import (
    refuse_what_stands_in_the_way,
)
from pgonce.sink.writing.new_columns import (
    Change,
)
from pgonce.sink.writing.table.catalogue import look_up_table

ADDED = Change("extra", "text")
WIDER = Change("name", "text", "character varying(5)")
TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5) DEFAULT 'none' NOT NULL)"


def look(connection, change) -> None:
    """Ask of the table events."""
    _, table = look_up_table(connection, "events")
    refuse_what_stands_in_the_way(connection, table, [change])


def test_what_depends_on_a_column_stands_in_the_way_of_widening_it(admin):
    """It is named; a column that is added concerns none of them."""
    admin.execute(TABLE)
    for ddl, reason in (
        ("CREATE VIEW report AS SELECT name FROM events", "view public.report depends on column name"),
        ("ALTER TABLE events ADD CHECK (name <> '')", "events_name_check on table .*events depends on column name"),
        ("CREATE INDEX by_lower ON events (lower(name))", "index .*by_lower depends on column name"),
        ("CREATE INDEX few ON events (id) WHERE name = 'a'", "index .*few depends on column name"),
        ("ALTER TABLE events ADD twice text GENERATED ALWAYS AS (name || name) STORED", "depends on column name"),
        ("CREATE POLICY own ON events USING (name = 'a')", "policy own on table .*events depends on column name"),
        (
            "CREATE TABLE names (name varchar(5) PRIMARY KEY); "
            "ALTER TABLE events ADD FOREIGN KEY (name) REFERENCES names",
            "constraint events_name_fkey on table .*events depends on column name",
        ),
        (
            "DROP TABLE events; CREATE DOMAIN short AS varchar(5); CREATE TABLE events (id bigint, name short)",
            r"column name is of the domain public\.short",
        ),
        (
            "DROP TABLE events; CREATE TABLE older (name varchar(5)); CREATE TABLE events (id bigint) INHERITS (older)",
            "column name is inherited",
        ),
        (
            "DROP TABLE events; CREATE TABLE events (id bigint, name varchar(5)) PARTITION BY LIST (name)",
            r"column name is in the partition key of public\.events",
        ),
        (
            "DROP TABLE events; CREATE TABLE events (id bigint, name varchar(5)) PARTITION BY LIST (id); "
            "CREATE TABLE part PARTITION OF events DEFAULT; CREATE VIEW report AS SELECT name FROM part",
            "view public.report depends on column name",
        ),
    ):
        says = (
            rf'\[TARGET_NOT_ALTERED\].*{reason}.*Help: .*: ALTER TABLE "public"."events" ALTER COLUMN "name" TYPE text;'
        )
        with admin.transaction(force_rollback=True):
            admin.execute(ddl)
            with pytest.raises(TargetError, match=says):
                look(admin, WIDER)
            look(admin, ADDED)


def test_what_postgres_keeps_does_not(admin):
    """Indexes on plain columns, the constraints that stand on them, defaults and statistics: no file is made again."""
    admin.execute(TABLE)
    admin.execute("INSERT INTO events SELECT i, i FROM generate_series(1, 99) AS i")
    files = (
        "SELECT array_agg(pg_relation_filenode(c.oid) ORDER BY c.relname) FROM pg_class AS c "
        "WHERE 'events'::regclass IN (c.oid, (SELECT indrelid FROM pg_index WHERE indexrelid = c.oid))"
    )
    for ddl in (
        "CREATE UNIQUE INDEX by_name ON events (name, id)",
        "CREATE INDEX by_id ON events (id) INCLUDE (name)",
        "ALTER TABLE events ADD UNIQUE (name)",
        "CREATE STATISTICS correlated ON id, name FROM events",
        "COMMENT ON COLUMN events.name IS 'a name'",
        "ANALYZE events",
    ):
        with admin.transaction(force_rollback=True):
            admin.execute(ddl)
            look(admin, WIDER)
            kept = admin.execute(files).fetchone()
            admin.execute(b"ALTER TABLE events " + WIDER.clause.as_bytes(None))
            assert (ddl, admin.execute(files).fetchone()) == (ddl, kept)


def test_a_partition_is_altered_with_its_whole_table(admin):
    """The statement to run names that table."""
    admin.execute("CREATE TABLE whole (id bigint) PARTITION BY LIST (id)")
    admin.execute("CREATE TABLE events PARTITION OF whole DEFAULT")
    with pytest.raises(TargetError, match=r"a partition of public\.whole.*: ALTER TABLE public\.whole ADD COLUMN"):
        look(admin, ADDED)


def test_a_table_of_a_type_has_its_columns(admin):
    """Postgres adds none to it."""
    admin.execute("CREATE TYPE event AS (id bigint)")
    admin.execute("CREATE TABLE events OF event")
    with pytest.raises(TargetError, match=r"columns are those of the type public\.event"):
        look(admin, ADDED)


def test_only_the_owner_may_alter(admin, login):
    """Members of the owner's role may, too; for a partitioned table, each partition has an owner."""
    admin.execute("CREATE TABLE events (id bigint) PARTITION BY LIST (id)")
    admin.execute("CREATE TABLE part PARTITION OF events DEFAULT")
    role = sql.Identifier(login.user)
    admin.execute(sql.SQL("GRANT ALL ON events TO {}").format(role))
    with psycopg.connect(login.url, autocommit=True) as connection:
        with pytest.raises(TargetError, match=rf"only the owner of public\.events .*the role {login.user}"):
            look(connection, ADDED)
        admin.execute(sql.SQL("ALTER TABLE events OWNER TO {}").format(role))
        with pytest.raises(TargetError, match=r"only the owner of public\.part "):
            look(connection, ADDED)
        admin.execute(sql.SQL("ALTER TABLE part OWNER TO {}").format(role))
        look(connection, ADDED)
