"""The auditor of examples/audit.sql finds what is wrong with a table and with the ledger, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.batches import make_batch
from support.committed_rows import appending, settings

from pgonce.offsets_store.commit.retrying import commit_batch

AUDIT = Path(__file__).parents[2] / "examples" / "audit.sql"


@pytest.fixture
def auditor(admin):
    """A session with the auditor's functions, and a source of three records."""
    admin.execute(AUDIT.read_text())
    admin.execute("CREATE TABLE sent (id int, name text, version int, gone boolean)")
    admin.execute("CREATE TABLE stored (id bigint, name text)")
    return admin


def rows_of(auditor, *arguments):
    """What is wrong with the table."""
    given = ", ".join(repr(one) for one in ("sent", "stored", "{id}", *arguments))
    query = f"SELECT finding, record, in_source, in_target FROM pg_temp.audit_rows({given}) ORDER BY 1, record::text"
    return auditor.execute(query).fetchall()


SENT = "INSERT INTO sent VALUES (1, 'a', 1), (2, 'b', 1), (3, NULL, 1)"
APPENDED = {
    "nothing": ("(1, 'a'), (2, 'b'), (3, NULL)", []),
    "a lost row": ("(1, 'a'), (3, NULL)", [("lost", {"id": 2}, 1, 0)]),
    "a doubled row": ("(1, 'a'), (2, 'b'), (2, 'b'), (3, NULL)", [("doubled", {"id": 2}, 1, 2)]),
    "an altered row": ("(1, 'a'), (2, 'x'), (3, NULL)", [("altered", {"id": 2, "name": "x"}, 0, 1)]),
    "a row of nowhere": ("(1, 'a'), (2, 'b'), (3, NULL), (4, 'd')", [("not of the source", {"id": 4}, 0, 1)]),
    "a null for a value": ("(1, NULL), (2, 'b'), (3, NULL)", [("altered", {"id": 1, "name": None}, 0, 1)]),
}


@pytest.mark.parametrize("case", APPENDED)
def test_what_is_wrong_with_appended_rows_is_found(case, auditor):
    """Each kind by its name, with the record."""
    stored, found = APPENDED[case]
    auditor.execute(SENT)
    auditor.execute(f"INSERT INTO stored VALUES {stored}")
    assert rows_of(auditor) == found


def test_a_table_of_a_database_without_a_ledger_is_audited(admin):
    """For any sink: what reads the ledger is not asked."""
    admin.execute("DROP SCHEMA IF EXISTS pgonce CASCADE")
    admin.execute(AUDIT.read_text())
    admin.execute("CREATE TABLE sent (id int)")
    admin.execute("CREATE TABLE stored AS SELECT 1 AS id")
    assert rows_of(admin) == [("not of the source", {"id": 1}, 0, 1)]


CHANGES = "INSERT INTO sent VALUES (1, 'a', 1, false), (1, 'b', 2, false), (2, 'x', 1, false), (2, 'x', 2, true)"
BY_KEY = {
    "nothing": ("(1, 'b')", []),
    "an older change": ("(1, 'a')", [("out of order", {"id": 1, "name": "a"}, 0, 1)]),
    "a value that never was": ("(1, 'c')", [("altered", {"id": 1, "name": "c"}, 0, 1)]),
    "a row that should be gone": ("(1, 'b'), (2, 'x')", [("not deleted", {"id": 2}, 0, 1)]),
    "a lost row": ("(9, 'b')", [("lost", {"id": 1}, 1, 0), ("not of the source", {"id": 9}, 0, 1)]),
}


@pytest.mark.parametrize("case", BY_KEY)
def test_what_is_wrong_with_rows_by_key_is_found(case, auditor):
    """Of the changes of a key the last one counts, and it may delete."""
    stored, found = BY_KEY[case]
    auditor.execute(CHANGES)
    auditor.execute(f"INSERT INTO stored VALUES {stored}")
    assert rows_of(auditor, "version", "gone") == found


LEDGER = {
    "nothing": ("SELECT 1", []),
    "a missing batch": (
        "DELETE FROM pgonce.batches WHERE batch_id = 1", [("batches are missing", 2), ("ranges do not adjoin", 2)],
    ),
    "a range of its own": (
        """UPDATE pgonce.batches SET start_offsets = '{"0": {"t": {"0": 11}}}' WHERE batch_id = 1""",
        [("ranges do not adjoin", 1)],
    ),
    "another end": (
        """UPDATE pgonce.writers SET end_offsets = '{"0": {"t": {"0": 40}}}'""", [("the newest batch is another", 2)],
    ),
    "another newest batch": ("UPDATE pgonce.writers SET last_batch_id = 1", [("the newest batch is another", 2)]),
    "a gap that a person accepted": (
        "WITH gone AS (DELETE FROM pgonce.batches WHERE batch_id = 1) INSERT INTO pgonce.interventions "
        "(writer_id, kind, batch_id, reason, made_by) SELECT writer_id, 'accept', 2, 'a test', 'me' "
        "FROM pgonce.writers",
        [],
    ),
}  # fmt: skip


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("case", LEDGER)
def test_what_is_wrong_with_a_ledger_is_found(case, auditor, url):
    """After batches that were committed; a gap that a person has accepted is none."""
    statement, found = LEDGER[case]
    for batch_id in range(3):
        commit_batch(settings(url), make_batch(batch_id), appending(batch_id))
    auditor.execute(statement)
    query = "SELECT finding, batch_id FROM pg_temp.audit_ledger() ORDER BY 1, 2"
    assert auditor.execute(query).fetchall() == found


POSITIONS = {
    "nothing": ("SELECT 1", []),
    "a missing row": ("DELETE FROM carried WHERE at = 12", [("no row", "t", 0, 12)]),
    "a row twice": ("INSERT INTO carried VALUES ('t', 0, 12)", [("twice", "t", 0, 12)]),
    "a row beyond": ("INSERT INTO carried VALUES ('t', 0, 20)", [("beyond the offsets", "t", 0, 20)]),
}


@pytest.mark.usefixtures("events")
@pytest.mark.parametrize("case", POSITIONS)
def test_rows_without_their_positions_are_found(case, auditor, url):
    """Against the offsets of the writer that fills the table."""
    statement, found = POSITIONS[case]
    for batch_id in range(2):
        commit_batch(settings(url), make_batch(batch_id), appending(batch_id))
    auditor.execute("CREATE TABLE carried (topic text, part int, at bigint)")
    auditor.execute("INSERT INTO carried SELECT 't', 0, generate_series(5, 19)")
    auditor.execute(statement)
    query = "SELECT * FROM pg_temp.audit_positions('carried', 'topic', 'part', 'at') ORDER BY 1, 4"
    assert auditor.execute(query).fetchall() == found


def test_the_auditor_is_short():
    """A reader checks it before trusting it."""
    assert len(AUDIT.read_text().splitlines()) <= 150
