"""After what docs/security.md says of erasing a person, no table of the ledger's schema holds the value any more."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from pyspark.sql import types as t
from support.dead_letters import put_aside
from support.typed_rows import commit_typed, staged_rows
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagingTable

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
PERSON = "ann@example.com"
COLUMNS = {"email": t.StringType(), "name": t.StringType(), "seq": t.LongType(), "gone": t.BooleanType()}
HOW = {"delete_when": "gone", "only_newer": True, "dead_letters": True}


@pytest.fixture
def admin(admin):
    """A connection that may do anything; a table of people."""
    admin.execute("CREATE TABLE people (email text PRIMARY KEY, name varchar(5), seq bigint)")
    return admin


def holding(admin: psycopg.Connection) -> set[str]:
    """The tables of the ledger, and those where rows are staged, with a row in which the person is."""
    names = admin.execute(
        "SELECT n.nspname, c.relname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace "
        "WHERE n.nspname IN ('pgonce', 'pgonce_staging') AND c.relkind = 'r'"
    ).fetchall()
    found = set()
    for schema, name in names:
        asked = sql.SQL("SELECT count(*) FROM {} AS row WHERE row::text LIKE {}")
        if admin.execute(asked.format(sql.Identifier(schema, name), sql.Literal(f"%{PERSON}%"))).fetchone() != (0,):
            found.add(name if schema == "pgonce" else "staged")
    return found


def statement(beginning: str) -> bytes:
    """The one statement of the page that begins so."""
    (found,) = [
        part
        for block in re.findall(r"^ *```sql\n(.*?)^ *```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
        for part in block.split(";")
        if part.strip().startswith(beginning)
    ]
    return found.encode()


def test_nothing_of_the_person_is_left(url, admin):
    """Their rows were deleted, refused and staged; the page's statements find all three."""
    where = destination("people", "apply", ("email",), "seq", **HOW)
    commit_typed(url, 0, where, COLUMNS, [(PERSON, "ann", 1, False), ("bob@example.com", "bob", 1, False)])
    commit_typed(url, 1, where, COLUMNS, [(PERSON, "too long", 2, False), ("bob@example.com", "bobby", 2, False)])
    commit_typed(url, 2, where, COLUMNS, [(PERSON, None, 3, True)])
    staged_rows(url, StagingTable("killed", "people", "run", 3), COLUMNS, [(PERSON, "ann", 4, False)])
    assert holding(admin) == {"dead_letters", "tombstones", "staged"}

    ((letter, query, _),) = admin.execute(statement("SELECT dead_letter_id")).fetchall()
    discard = ["dead-letters", query, "--discard", "--id", str(letter), "--reason", "erasure request 42", "--yes"]
    assert CliRunner().invoke(app, [*discard, "--url", url]).exit_code == 0
    admin.execute(statement("DELETE FROM pgonce.tombstones"))
    ((table, *_),) = admin.execute(statement("SELECT table_name")).fetchall()
    admin.execute(sql.SQL("DROP TABLE pgonce_staging.{}").format(sql.Identifier(table)))
    admin.execute("DELETE FROM pgonce.staged_tables WHERE table_name = %s", [table])

    assert holding(admin) == set()
    assert admin.execute("SELECT email FROM people").fetchall() == [("bob@example.com",)]


def test_a_record_that_could_not_be_decoded_is_found(store, admin):
    """By its value, or by its key, which are bytes in a letter."""
    found = {put_aside(admin, {}, record_value=f'{{"email": "{PERSON}"'.encode())}
    found.add(put_aside(admin, {}, record_key=PERSON.encode()))
    put_aside(admin, {}, record_value=b"bob@example.com")
    assert {letter for letter, *_ in admin.execute(statement("SELECT dead_letter_id")).fetchall()} == found
