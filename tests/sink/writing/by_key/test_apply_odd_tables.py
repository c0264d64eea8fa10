"""
Tables, types and settings that make changes harder to apply.

Covers: sink.writing.by_key.apply, sink.writing.by_key.change_table.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, WRITE, apply, changes, stored
from support.batches import make_batch
from support.sent_rows import sent
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import TargetError
from pgonce.sink.options.destination import DELETED_COLUMN, Changes, destination

NOW = datetime.now(timezone.utc)


pytestmark = pytest.mark.usefixtures("ledger")


def test_an_order_that_the_column_cannot_hold_is_refused_in_a_delete_too(url, admin):
    """Otherwise it would be remembered, and every later batch would fail by it."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq int)")
    with pytest.raises(psycopg.errors.NumericValueOutOfRange):
        apply(url, (1, None, 2**40, DELETE), only_newer=True)


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("mode", ["apply", "upsert"])
def test_columns_that_may_not_change_are_those_of_the_first_row(mode, at_once, url, admin):
    """However the rows of a key are cut into batches; after a delete it begins again."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint, gone bool)")
    rows = [(1, "first", 1, WRITE), (1, "second", 2, WRITE), (2, "gone", 1, WRITE)]
    rows += [(2, None, 2, DELETE), (2, "again", 3, WRITE), (2, "later", 4, WRITE)] if mode == "apply" else []
    how = {"mode": mode, "delete_when": "gone" if mode == "apply" else None, "update_columns": ["seq"]}
    for batch in [rows] if at_once else [[row] for row in rows]:
        apply(url, *batch, **how)
    assert [row[:3] for row in stored(admin)] == [
        (1, "first", 2),
        (2, "again", 4) if mode == "apply" else (2, "gone", 1),
    ]


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("only_newer", [True, False])
def test_a_row_that_is_deleted_and_comes_back_is_a_new_one(at_once, only_newer, url, admin):
    """It loses what others put into columns that the rows do not have, and its children, in one batch as in two."""
    admin.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint, note text DEFAULT 'new'); "
        "CREATE TABLE parts (id bigint REFERENCES events ON DELETE CASCADE); "
        "CREATE FUNCTION same() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN coalesce(NEW, OLD); END $$; "
        "CREATE TRIGGER same BEFORE INSERT OR UPDATE OR DELETE ON events FOR EACH ROW EXECUTE FUNCTION same(); "
        "INSERT INTO events VALUES (1, 'a', 1, 'of others'), (2, 'newer', 6, 'of others'); "
        "INSERT INTO parts VALUES (1), (2)"
    )
    rows = [(1, None, 2, DELETE), (1, "b", 3, WRITE), (2, None, 5, DELETE), (2, "c", 7, WRITE)]
    for batch in [rows] if at_once else [[row] for row in rows]:
        apply(url, *batch, only_newer=only_newer)
    kept = [(2, "c", 7, "of others" if only_newer else "new")]
    assert stored(admin) == [(1, "b", 3, "new"), *kept]
    assert admin.execute("SELECT id FROM parts").fetchall() == ([(2,)] if only_newer else [])


HIDDEN = {
    "a row that a policy hides": ("USING (name <> 'theirs') WITH CHECK (true)", "FOR ALL"),
    "a row that a policy lets nobody change": ("USING (true)", "FOR SELECT"),
}


@pytest.mark.parametrize("triggers", ["", "UPDATE OR INSERT OR DELETE"])
@pytest.mark.parametrize("policy", HIDDEN)
def test_a_write_that_row_level_security_leaves_out_is_refused(policy, triggers, url, admin, login):
    """An UPDATE skips such a row without a word, and the batch would be recorded without it; with triggers, too."""
    using, what = HIDDEN[policy]
    code = "ROWS_NOT_WRITTEN|TRIGGER_CHANGED_ROWS.*or row-level security" if triggers else "ROWS_NOT_WRITTEN"
    admin.execute(
        f"CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint); ALTER TABLE events ENABLE ROW LEVEL "
        f"SECURITY; INSERT INTO events VALUES (1, 'mine', 1), (2, 'theirs', 1); GRANT ALL ON events TO {login.user}; "
        f"CREATE POLICY seen ON events {what} TO {login.user} {using}; "
        f"CREATE POLICY may_insert ON events FOR INSERT TO {login.user} WITH CHECK (true); "
        f"GRANT ALL ON SCHEMA pgonce TO {login.user}; GRANT ALL ON ALL TABLES IN SCHEMA pgonce TO {login.user}".encode()
    )
    if triggers:
        admin.execute(
            "CREATE FUNCTION harmless() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN RETURN coalesce(NEW, OLD); END'; "
            f"CREATE TRIGGER harmless BEFORE {triggers} ON events FOR EACH ROW EXECUTE FUNCTION harmless()".encode()
        )
    for only_newer in (False, True):
        # Of a row that it may not see, the role cannot keep a value.
        with pytest.raises(TargetError, match=f"{code}|VALUE_NOT_READ"):
            apply(login.url, (2, "?", 2, WRITE), keep_where="?", only_newer=only_newer)
        assert [row[:3] for row in stored(admin)] == [(1, "mine", 1), (2, "theirs", 1)]
        assert apply(login.url, (3, "new", 2, WRITE), keep_where="?", only_newer=only_newer) == {"written": 1}
        admin.execute("DELETE FROM events WHERE id = 3")
        if what == "FOR SELECT":
            for deletes in ("hard", "soft:gone_at"):
                admin.execute("ALTER TABLE events ADD IF NOT EXISTS gone_at timestamptz")
                with pytest.raises(TargetError, match=code):
                    apply(login.url, (1, None, 2, DELETE), deletes=deletes, only_newer=only_newer)


def test_a_row_that_has_only_keys_may_come_again_under_row_level_security(url, admin, login):
    """There is nothing to update, so that the stored row stays, and no policy has prevented anything."""
    admin.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY); ALTER TABLE events ENABLE ROW LEVEL SECURITY; "
        f"GRANT ALL ON events TO {login.user}; CREATE POLICY all_rows ON events TO {login.user} USING (true); "
        f"GRANT ALL ON SCHEMA pgonce TO {login.user}; GRANT ALL ON ALL TABLES IN SCHEMA pgonce TO {login.user}".encode()
    )
    struct = changes(id=t.LongType())
    assert apply(login.url, (1, WRITE), struct=struct, order_by=None) == {"written": 1}
    assert apply(login.url, (1, WRITE), (2, WRITE), struct=struct, order_by=None) == {"written": 1, "passed_over": 1}


def test_whoever_swallows_an_error_cannot_commit_what_came_before_it(url, admin):
    """A trigger's doing is noticed once rows were written and deleted; then the whole transaction has failed."""
    admin.execute(
        "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint); INSERT INTO events VALUES (9, 'old', 1); "
        "CREATE FUNCTION leave_out() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.id = 2 THEN RETURN NULL; END IF; RETURN NEW; END $$; "
        "CREATE TRIGGER leave_out BEFORE INSERT ON events FOR EACH ROW EXECUTE FUNCTION leave_out()"
    )
    with psycopg.connect(url) as connection:
        with pytest.raises(TargetError, match="TRIGGER_CHANGED_ROWS"):
            apply(connection, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (9, None, 2, DELETE))
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    assert stored(admin) == [(9, "old", 1)]


@pytest.mark.parametrize("keys", [("id", "seq"), ("id",)])
def test_a_soft_delete_leaves_keys_and_order_alone(keys, url, admin):
    """Otherwise it would give the row another key, or another place in the order, and an older change could win."""
    admin.execute("CREATE TABLE events (id bigint, name text, seq timestamptz, PRIMARY KEY (id), UNIQUE (id, seq))")
    struct = changes(id=t.LongType(), name=t.StringType(), seq=t.TimestampType())
    order_by = "seq" if keys == ("id",) else "name"
    with pytest.raises(TargetError, match="SOFT_COLUMN"):
        apply(url, (1, "a", NOW, DELETE), struct=struct, keys=keys, order_by=order_by, deletes="soft:seq")


@pytest.mark.parametrize("column", ["timestamptz NOT NULL", "timestamp GENERATED ALWAYS AS (seen) STORED"])
def test_a_soft_delete_needs_a_column_that_also_says_that_a_row_is_there(column, url, admin):
    """A time of deletion is null then, and it is set by the batch alone."""
    columns = f"id bigint PRIMARY KEY, name text, seq bigint, seen timestamp, left_at {column}"
    admin.execute(f"CREATE TABLE events ({columns})")
    with pytest.raises(TargetError, match="SOFT_COLUMN"):
        apply(url, (1, "a", 1, WRITE), deletes="soft:left_at")


def test_rows_that_only_delete_bring_no_value_for_the_other_columns(url, admin):
    """A column that must have a value, or a key that Postgres generates, stands in the way of writes alone."""
    admin.execute(
        "CREATE TABLE events (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text NOT NULL); "
        "INSERT INTO events (name) VALUES ('a'), ('b')"
    )
    keys = changes(id=t.LongType(), delete_column=DELETED_COLUMN)
    where = destination("events", "apply", ("id",), delete_when=DELETED_COLUMN)
    where = replace(where, changes=Changes(all_delete=True))
    with psycopg.connect(url) as connection:
        rows = sent(url, "inline", keys, [(1, DELETE), (7, DELETE)])
        counts = write_batch_in_tx(connection, where, rows, batch=make_batch()).counts
    assert counts is not None
    assert (counts["deleted"], counts["not_found"]) == (1, 1)
    assert stored(admin) == [(2, "b")]


@pytest.mark.parametrize("mode", ["apply", "upsert"])
def test_a_domain_over_an_enum_is_a_key(mode, url, admin):
    """Postgres has no operator for such a domain, but one for its enum."""
    admin.execute("CREATE TYPE mood AS ENUM ('calm', 'wild'); CREATE DOMAIN felt AS mood; CREATE DOMAIN deep AS felt")
    admin.execute("CREATE TABLE events (id deep PRIMARY KEY, name text, seq bigint)")
    how = {"struct": changes(id=t.StringType(), name=t.StringType(), seq=t.LongType()), "mode": mode}
    if mode == "upsert":
        how |= {"delete_when": None, "keep_where": "?", "schema_evolution": "ignoreExtra"}
    apply(url, ("calm", "a", 1, WRITE), ("wild", "b", 1, WRITE), **how)
    apply(url, ("calm", "c", 2, WRITE), ("wild", "?", 2, DELETE if mode == "apply" else WRITE), **how)
    left = [("calm", "c", 2)] if mode == "apply" else [("calm", "c", 2), ("wild", "b", 2)]
    assert stored(admin) == left
