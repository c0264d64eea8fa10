"""What is in the way of altering a table is named before anybody waits for it, with the statement to run."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.writing.new_columns import refuse_what_stands_in_the_way
from pgonce.sink.writing.table.catalogue import look_up_table
from pgonce.sink.writing.table.new_table import NewColumn


def look(connection) -> None:
    """Ask of the table events."""
    _, table = look_up_table(connection, "events")
    refuse_what_stands_in_the_way(connection, table, [NewColumn("extra", "text")])


def test_a_partition_is_altered_with_its_whole_table(admin):
    """The statement to run names that table."""
    admin.execute("CREATE TABLE whole (id bigint) PARTITION BY LIST (id)")
    admin.execute("CREATE TABLE events PARTITION OF whole DEFAULT")
    with pytest.raises(TargetError, match=r"TARGET_NOT_ALTERED.*ALTER TABLE public\.whole ADD COLUMN"):
        look(admin)


def test_a_table_of_a_type_has_its_columns(admin):
    """Postgres adds none to it."""
    admin.execute("CREATE TYPE event AS (id bigint)")
    admin.execute("CREATE TABLE events OF event")
    with pytest.raises(TargetError, match=r"TARGET_NOT_ALTERED.*type public\.event\b"):
        look(admin)


def test_only_the_owner_may_alter(admin, login):
    """Members of the owner's role may, too; for a partitioned table, each partition has an owner."""
    admin.execute("CREATE TABLE events (id bigint) PARTITION BY LIST (id)")
    admin.execute("CREATE TABLE part PARTITION OF events DEFAULT")
    role = sql.Identifier(login.user)
    admin.execute(sql.SQL("GRANT ALL ON events TO {}").format(role))
    with psycopg.connect(login.url, autocommit=True) as connection:
        with pytest.raises(TargetError, match=rf"TARGET_NOT_ALTERED.*owner of public\.events .*{login.user}"):
            look(connection)
        admin.execute(sql.SQL("ALTER TABLE events OWNER TO {}").format(role))
        with pytest.raises(TargetError, match=r"TARGET_NOT_ALTERED.*owner of public\.part "):
            look(connection)
        admin.execute(sql.SQL("ALTER TABLE part OWNER TO {}").format(role))
        look(connection)
