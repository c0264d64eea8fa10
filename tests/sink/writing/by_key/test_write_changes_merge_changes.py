"""Large batches of writes and deletes: one MERGE leaves what statements of their own leave, or steps back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import psycopg
import pytest
from pyspark.sql import types as t
from support.applied_changes import DELETE, PLAIN, WRITE, apply, changes
from support.fixtures.driver import wait_until
from support.sent_rows import publish

import pgonce.sink.writing.by_key.upsert
import pgonce.sink.writing.by_key.write_changes
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.options.destination import DELETED_COLUMN
from pgonce.sink.writing.by_key.upsert import merged

TABLE = "CREATE TABLE events (id bigint PRIMARY KEY, name text, seq bigint)"


@pytest.fixture
def admin(url):
    """A connection that may do anything, to a database with a ledger."""
    ensure_ledger(url)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def merges(admin, monkeypatch):
    """Batches of any size may be merged; a list of how many rows each such statement changed, or None."""
    outcomes = []

    def noted(*arguments):
        outcomes.append(merged(*arguments))
        return outcomes[-1]

    monkeypatch.setattr(pgonce.sink.writing.by_key.upsert, "MERGED_ROWS", 0)
    monkeypatch.setattr(pgonce.sink.writing.by_key.write_changes, "merged", noted)
    return outcomes


def stored(admin, columns="*"):
    """The rows of the table."""
    return admin.execute(f"SELECT {columns} FROM events ORDER BY id".encode()).fetchall()


def is_merged_on(admin, *rows):
    """What the list of merges then has; Postgres 14 knows no MERGE."""
    return list(rows) if admin.info.server_version >= 150000 else []


def test_one_statement_writes_and_deletes(url, admin, merges):
    """What becomes of each change is counted as it is without MERGE: a delete that finds no row, too."""
    admin.execute(TABLE)
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (3, "c", 1, WRITE))
    given = [
        (1, "A", 2, WRITE), (2, None, 2, DELETE), (4, "d", 2, WRITE), (5, None, 2, DELETE),
        # Deleted and written again, and the other way round.
        (3, None, 2, DELETE), (3, "C", 3, WRITE), (6, "f", 2, WRITE), (6, None, 3, DELETE),
    ]  # fmt: skip
    counts = apply(url, *given)
    assert counts == {"written": 3, "deleted": 1, "not_found": 2, "superseded": 2}
    assert stored(admin) == [(1, "A", 2), (3, "C", 3), (4, "d", 2)]
    assert merges == is_merged_on(admin, 4)


@pytest.mark.parametrize(
    "more",
    [
        "ALTER TABLE events ADD note text",
        "ALTER TABLE events ADD twice bigint GENERATED ALWAYS AS (seq * 2) STORED",
        "CREATE TABLE others (id bigint REFERENCES events ON DELETE CASCADE)",
        "CREATE TABLE others (id bigint PRIMARY KEY); INSERT INTO others VALUES (1), (2); "
        "ALTER TABLE events ADD FOREIGN KEY (id) REFERENCES others NOT VALID",
        "ALTER TABLE events ADD CHECK (seq > 0)",
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$; "
        "CREATE TRIGGER look AFTER DELETE ON events FOR EACH ROW EXECUTE FUNCTION look()",
        "ALTER TABLE events ENABLE ROW LEVEL SECURITY; ALTER TABLE events FORCE ROW LEVEL SECURITY; "
        "CREATE POLICY all_rows ON events USING (true)",
    ],
    ids=["a_column_more", "a_generated_column", "referenced", "not_valid", "checked", "a_trigger", "policies"],
)
def test_where_somebody_could_tell(more, url, admin, login, merges):
    """If the batch does not have all of a row, or others see how it came about, deletes and writes stay apart."""
    admin.execute(f"{TABLE}; {more}; GRANT ALL ON events TO {login.user}".encode())
    where = login.url if "POLICY" in more else url
    apply(where, (1, "a", 1, WRITE), (2, "b", 1, WRITE))
    assert apply(where, (1, None, 2, DELETE), (2, "B", 2, WRITE)) == {"deleted": 1, "written": 1}
    assert stored(admin, "id, name, seq") == [(2, "B", 2)]
    assert merges == []


def test_a_row_that_is_written_again_loses_what_others_put_into_it(url, admin, merges):
    """So it does without MERGE: a column that the changes do not have keeps the two apart."""
    admin.execute(f"{TABLE}; ALTER TABLE events ADD note text")
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE))
    admin.execute("UPDATE events SET note = 'by hand'")
    apply(url, (1, None, 2, DELETE), (1, "A", 3, WRITE), (2, "B", 2, WRITE))
    assert stored(admin) == [(1, "A", 3, None), (2, "B", 2, "by hand")]
    assert merges == []


@pytest.mark.parametrize("feed", ["spark", "delta"])
def test_a_version_that_deletes_and_inserts_has_replaced_the_row(feed, url, admin, merges):
    """In whatever order the two come; one statement decides it by the same rule as several."""
    admin.execute(TABLE)
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (3, "c", 1, WRITE))
    struct = changes(id=t.LongType(), name=t.StringType(), seq=t.LongType(), delete_column=DELETED_COLUMN)
    rows = [(1, "A", 2, WRITE), (1, None, 2, DELETE), (2, None, 2, DELETE), (2, "B", 2, WRITE), (3, None, 2, DELETE)]
    apply(url, *rows, struct=struct, delete_when=None, change_feed=feed)
    assert stored(admin) == [(1, "A", 2), (2, "B", 2)]
    assert merges == is_merged_on(admin, 3)


@pytest.mark.parametrize("letters", [False, True])
def test_unique_values_that_move(letters, url, admin, merges):
    """MERGE writes one before its old row is deleted, and fails; then each delete makes room before the writes."""
    admin.execute(f"{TABLE}; ALTER TABLE events ADD UNIQUE (name)")
    apply(url, (1, "a", 1, WRITE), (2, "b", 1, WRITE), (4, "d", 1, WRITE))
    swap = [(1, None, 2, DELETE), (1, "b", 3, WRITE), (2, None, 2, DELETE), (2, "a", 3, WRITE)]
    counts = apply(url, *swap, (3, "d", 2, WRITE), (4, None, 2, DELETE), dead_letters=letters)
    assert counts == {"written": 3, "deleted": 3}
    assert stored(admin) == [(1, "b", 3), (2, "a", 3), (3, "d", 2)]
    assert merges == is_merged_on(admin, None)


@pytest.mark.parametrize("how", [{"mode": "apply", "delete_when": "gone"}, {"mode": "upsert", "keys": ["id"]}])
def test_a_refused_value_fails_the_transaction(how, url, admin, merges):
    """Somebody who swallows the error cannot commit the rest; and the error says which row it was."""
    admin.execute("CREATE TABLE events (id bigint PRIMARY KEY, name varchar(3), seq bigint, gone bool)")
    with psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.StringDataRightTruncation) as error:
            publish(
                connection, "inline", PLAIN, [(1, "too long", 2, WRITE), (2, None, 2, DELETE)], order_by="seq", **how
            )
        assert connection.info.transaction_status == psycopg.pq.TransactionStatus.INERROR
    assert any("id = 1" in note for note in error.value.__notes__)


def test_a_numeric_key_gets_the_form_that_the_changes_have(url, admin, merges):
    """It is deleted and inserted, and so loses the digits that it had: an update would leave them."""
    admin.execute("CREATE TABLE events (id numeric PRIMARY KEY, name text, seq bigint); INSERT INTO events VALUES (1)")
    struct = changes(id=t.DecimalType(10, 2), name=t.StringType(), seq=t.LongType())
    apply(url, (Decimal("1.00"), None, 2, DELETE), (Decimal("1.00"), "b", 3, WRITE), struct=struct)
    assert stored(admin, "id::text, name") == [("1.00", "b")]
    assert merges == []


def test_a_row_that_another_session_writes_again_is_deleted(url, admin, merges):
    """The delete waits for that session, and takes the new row, as it does without MERGE."""
    admin.execute(TABLE)
    apply(url, (5, "a", 1, WRITE), (6, "a", 1, WRITE))
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("DELETE FROM events WHERE id = 5")
        other.execute("INSERT INTO events VALUES (5, 'other', 1)")
        applying = pool.submit(apply, url, (5, None, 2, DELETE), (6, "b", 2, WRITE))
        waiting = "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted"
        wait_until(lambda: admin.execute(waiting).fetchone() == (1,))
        other.commit()
        assert applying.result() == {"written": 1, "deleted": 1}
    assert stored(admin) == [(6, "b", 2)]


def test_a_role_that_may_only_delete(url, admin, login, merges):
    """MERGE asks for all privileges that it might need; a batch without writes does without."""
    admin.execute(
        f"{TABLE}; INSERT INTO events VALUES (1); GRANT SELECT, UPDATE, DELETE ON events TO {login.user}".encode()
    )
    assert apply(login.url, (1, None, 2, DELETE), (4, None, 2, DELETE)) == {"deleted": 1, "not_found": 1}
    assert merges == is_merged_on(admin, None)


@pytest.mark.parametrize(
    ("identity", "columns"), [("NOTHING", ""), ("DEFAULT", "WHERE (name <> 'x')"), ("DEFAULT", "(name)")]
)
def test_a_table_that_is_published_for_updates_which_it_cannot_identify(identity, columns, url, admin, merges):
    """Postgres refuses MERGE for the updates that it might do; a batch that only deletes is written all the same."""
    if columns and admin.info.server_version < 150000:
        pytest.skip("Postgres 14 publishes whole tables.")
    admin.execute(
        f"{TABLE}; INSERT INTO events VALUES (1), (2); ALTER TABLE events REPLICA IDENTITY {identity}".encode()
    )
    published = f"CREATE PUBLICATION of_updates FOR TABLE events {columns} WITH (publish = 'insert, update')"
    admin.execute(published.encode())
    assert apply(url, (1, None, 2, DELETE), (4, None, 2, DELETE)) == {"deleted": 1, "not_found": 1}
    assert stored(admin, "id") == [(2,)]
    assert merges == is_merged_on(admin, None)
