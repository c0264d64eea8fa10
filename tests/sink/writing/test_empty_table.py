"""
If a batch replaces all rows, no old row stays silently with the new ones.

Covers: sink.writing.empty_table.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import stored
from support.blocked import wait_for_blocked
from support.sent_rows import publish

from pgonce.offsets_store.errors import TargetError

STRUCT = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])
TABLE = "CREATE TABLE events (id bigint, name text)"
KEEPS = (
    "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "IF OLD.name = 'kept' THEN RETURN NULL; END IF; RETURN OLD; END $$; "
    "CREATE TRIGGER keep BEFORE DELETE ON {} FOR EACH ROW EXECUTE FUNCTION keep()"
)


def replace_all(url, *rows):
    """Replace the table's rows, as mode=complete does."""
    publish(url, "inline", STRUCT, rows, mode="complete")


@pytest.mark.parametrize("table", ["events", "of_it"])
def test_a_trigger_that_keeps_rows(table, url, admin):
    """Also one of a partition: the batch is refused, and what is stored stays as it is."""
    admin.execute("CREATE TABLE events (id bigint, name text) PARTITION BY LIST (id)")
    admin.execute("CREATE TABLE of_it PARTITION OF events DEFAULT")
    admin.execute(KEEPS.format(table).encode())
    replace_all(url, (1, "a"), (2, "b"))
    replace_all(url, (1, "kept"))
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS.*BEFORE DELETE has"):
        replace_all(url, (3, "new"))
    assert stored(admin) == [(1, "kept")]


def test_a_role_that_no_policy_lets_delete(url, admin, login):
    """DELETE would skip all rows without a word, and each batch would add its own."""
    admin.execute(
        f"{TABLE}; ALTER TABLE events ENABLE ROW LEVEL SECURITY; GRANT ALL ON events TO {login.user}".encode()
    )
    admin.execute(f"CREATE POLICY adds ON events FOR INSERT TO {login.user} WITH CHECK (true)".encode())
    with pytest.raises(TargetError, match="ROWS_NOT_WRITTEN.*row-level security"):
        replace_all(login.url, (1, "a"))
    admin.execute("CREATE POLICY deletes ON events FOR DELETE USING (true)")
    replace_all(login.url, (1, "a"))
    replace_all(login.url, (2, "b"))
    assert stored(admin) == [(2, "b")]


def test_a_trigger_that_keeps_rows_of_a_role_that_has_its_own(url, admin, login):
    """Row-level security does not hide what the trigger did: rows that this role sees after all were deleted."""
    admin.execute(f"{TABLE}; INSERT INTO events VALUES (1, 'theirs'); GRANT ALL ON events TO {login.user}".encode())
    admin.execute("ALTER TABLE events ENABLE ROW LEVEL SECURITY; CREATE POLICY own ON events USING (name <> 'theirs')")
    admin.execute(KEEPS.format("events").encode())
    replace_all(login.url, (2, "b"))
    replace_all(login.url, (3, "kept"))
    with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS.*BEFORE DELETE, or row-level security"):
        replace_all(login.url, (4, "new"))
    assert stored(admin) == [(1, "theirs"), (3, "kept")]


def test_what_others_commit_meanwhile_goes_as_a_whole_or_stays_as_a_whole(url, admin):
    """An upsert in its COMMIT has changed one old row and added a row: none of the two is left without the other."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text); INSERT INTO events VALUES (2, 'old')")
    with psycopg.connect(url) as upserting, ThreadPoolExecutor(1) as pool:
        publish(upserting, "inline", STRUCT, [(2, "b"), (7, "b")], mode="upsert")
        replacing = pool.submit(replace_all, url, (100, "c"))
        wait_for_blocked(admin, upserting)
        upserting.commit()
        replacing.result()
    assert stored(admin) == [(100, "c")]


@pytest.mark.parametrize("each", ["ROW", "STATEMENT"])
def test_a_trigger_that_puts_a_row_back_is_the_users_business(each, url, admin):
    """It hears of one DELETE if that leaves nothing, and the batch goes on with what it has put back."""
    admin.execute(f"{TABLE}; INSERT INTO events VALUES (1, 'old'); CREATE TABLE heard (op text)".encode())
    back = "INSERT INTO events VALUES (0, 'unknown') ON CONFLICT DO NOTHING;" if each == "ROW" else ""
    admin.execute(
        "CREATE FUNCTION hears() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN INSERT INTO heard VALUES (TG_OP); {back} RETURN NULL; END $$; "
        f"CREATE TRIGGER hears AFTER DELETE ON events FOR EACH {each} EXECUTE FUNCTION hears()".encode()
    )
    replace_all(url, (2, "new"))
    if back:
        assert stored(admin) == [(0, "unknown"), (2, "new")]
    else:
        assert stored(admin) == [(2, "new")]
        assert admin.execute("SELECT * FROM heard").fetchall() == [("DELETE",)]


@pytest.mark.parametrize("action", ["CASCADE", "SET NULL", "SET DEFAULT"])
def test_rows_of_other_tables_do_not_go_with_the_old_ones(action, url, admin):
    """Nothing would write these again. Without an action, the key that comes again is there when it is checked."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text)")
    admin.execute(f"CREATE TABLE notes (id bigint CONSTRAINT of REFERENCES events ON DELETE {action})".encode())
    admin.execute("INSERT INTO events VALUES (1, 'old'); INSERT INTO notes VALUES (1)")
    with pytest.raises(TargetError, match=r"DELETE_ACTION.*public\.notes\b"):
        replace_all(url, (1, "new"))
    assert stored(admin) == [(1, "old")]
    admin.execute(
        "ALTER TABLE notes DROP CONSTRAINT of, ADD FOREIGN KEY (id) REFERENCES events DEFERRABLE INITIALLY DEFERRED"
    )
    replace_all(url, (1, "new"))
    assert stored(admin) == [(1, "new")]
    assert admin.execute("TABLE notes").fetchall() == [(1,)]


REDIRECTS = (
    "CREATE FUNCTION redirect() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "INSERT INTO part VALUES (NEW.*); RETURN NULL; END $$; "
    "CREATE TRIGGER redirect BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION redirect()"
)


@pytest.mark.parametrize("mode", ["complete", "upsert", "apply"])
def test_rows_that_a_trigger_puts_into_tables_that_inherit(mode, url, admin):
    """As tables were partitioned before Postgres had partitions: stored rows would not be found, or come twice."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text); CREATE TABLE part () INHERITS (events)")
    admin.execute("INSERT INTO events VALUES (1, 'a')")
    admin.execute(REDIRECTS)
    with pytest.raises(TargetError, match="ROWS_IN_CHILDREN.*BEFORE INSERT"):
        publish(url, "inline", STRUCT, [(1, "b")], mode=mode, **of_mode(mode))
    publish(url, "inline", STRUCT, [(2, "appended")])
    assert admin.execute("SELECT tableoid::regclass::text, * FROM events ORDER BY id").fetchall() == [
        ("events", 1, "a"),
        ("part", 2, "appended"),
    ]


@pytest.mark.parametrize(
    ("mode", "how"), [("upsert", {"only_newer": True, "order_by": "name"}), ("apply", {}), ("complete", {})]
)
def test_chunks_are_known_by_their_schema(mode, how, url, admin):
    """
    Tables as TimescaleDB's catalogue has them, without TimescaleDB: a hypertable's rows are in its chunks.

    An upsert that only replaces rows is left to ON CONFLICT, which looks into the chunks.
    """
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text); CREATE SCHEMA _timescaledb_internal")
    admin.execute("CREATE TABLE _timescaledb_internal._hyper_1_1_chunk () INHERITS (events)")
    with pytest.raises(TargetError, match="ROWS_IN_CHILDREN.*TimescaleDB"):
        publish(url, "inline", STRUCT, [(1, "a")], mode=mode, **of_mode(mode), **how)
    publish(url, "inline", STRUCT, [(1, "a")], mode="upsert", **of_mode("upsert"))
    assert stored(admin) == [(1, "a")]


def of_mode(mode):
    """The options without which the mode is refused."""
    return {"complete": {}, "upsert": {"keys": ["id"]}, "apply": {"keys": ["id"], "delete_when": "gone"}}[mode]


def test_a_table_that_inherits_keeps_its_rows(url, admin):
    """They are another table's, which another query may feed."""
    admin.execute(TABLE)
    admin.execute("CREATE TABLE inherits () INHERITS (events)")
    admin.execute("INSERT INTO inherits VALUES (7, 'a')")
    replace_all(url, (1, "a"))
    replace_all(url, (2, "b"))
    assert stored(admin) == [(2, "b"), (7, "a")]
