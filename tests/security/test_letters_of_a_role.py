"""What a streaming role writes into a dead letter is not believed by the administrator who replays it."""

from __future__ import annotations

import base64
import os
import pickle
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb
from pyspark.sql import types as t
from support.dead_letters import EVENTS, STRUCT, a_past
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.offsets_store.ledger.migrations import grants
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.writing.recorded_destination import recorded


@pytest.fixture
def admin(admin, url):
    """A connection that may do anything; there are a table for rows, and one that no query feeds."""
    a_past(url)
    admin.execute("CREATE TABLE events (id bigint, name varchar(5)); CREATE TABLE payroll (id bigint, name text)")
    return admin


@pytest.fixture
def role(admin):
    """A streaming role, with what `pgonce init --role` grants and no more."""
    name = f"streamer_{os.getpid()}"
    quoted = sql.Identifier(name)
    admin.execute(sql.SQL("CREATE ROLE {}").format(quoted))
    admin.execute("; ".join(grants(name)).encode())
    yield name
    admin.execute(sql.SQL("DROP OWNED BY {0} CASCADE; DROP ROLE {0}").format(quoted))


def put(admin: psycopg.Connection, role: str, **changed: Any) -> None:
    """The role writes a letter for the table ``events``, in which this is changed."""
    letter = {
        "query_id": "q1",
        "sink_name": "public.orders",
        "batch_id": 3,
        "target": "public.events",
        "row_data": Jsonb({"id": 1, "name": "n1"}),
        "code": "22001",
        "message": "value too long",
        "destination": recorded(EVENTS, encoded_columns(STRUCT)),
        **changed,
    }
    letter |= {"destination": Jsonb(letter["destination"]), "query_id": _query(admin)}
    names, places = ", ".join(letter), ", ".join(f"%({name})s" for name in letter)
    with admin.transaction():
        admin.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
        admin.execute(f"INSERT INTO pgonce.dead_letters ({names}) VALUES ({places})".encode(), letter)


def _query(admin: psycopg.Connection) -> str:
    found = admin.execute("SELECT query_id FROM pgonce.writers").fetchone()
    assert found is not None
    return str(found[0])


def replay(url: str, *more: str) -> Any:
    """What the administrator's command says."""
    return CliRunner().invoke(app, ["dead-letters", "orders", "--replay", "--url", url, *more])


class Evil:
    """Unpickling it makes a folder."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.proof),)


@pytest.mark.parametrize("more", [(), ("--yes",)], ids=str)
@pytest.mark.parametrize("form", ["as it is recorded", "as Spark writes a struct", "in an array"])
def test_a_type_of_its_choice_is_not_made(url, admin, role, tmp_path, form, more):
    """A user-defined type would be imported, or unpickled and run, by Spark's reader of types."""
    proof = tmp_path / "made"
    pickled = base64.b64encode(pickle.dumps(Evil(proof))).decode()
    evil = {"type": "udt", "class": None, "pyClass": "this.No", "sqlType": "string", "serializedClass": pickled}
    field = {"name": "type", "type": evil, "nullable": True, "metadata": {}}
    forms = {
        "as it is recorded": evil,
        "as Spark writes a struct": {"type": "struct", "fields": [field]},
        "in an array": {"type": "array", "elementType": evil, "containsNull": True},
    }
    column = {"name": "id", "type": forms[form]}
    put(admin, role, destination={**recorded(EVENTS, encoded_columns(STRUCT)), "columns": [column]})
    said = replay(url, *more)
    assert (said.exit_code, proof.exists()) == (6, False)
    assert "REPLAY_IMPOSSIBLE" in said.output
    assert "not a type that can be written to Postgres" in said.output
    assert "Zen of Python" not in said.output


@pytest.mark.parametrize("more", [(), ("--yes",)], ids=str)
def test_the_row_goes_into_the_table_that_is_shown(url, admin, role, more):
    """A letter whose destination names another table than its target is refused."""
    put(admin, role, destination={**recorded(EVENTS, encoded_columns(STRUCT)), "table": '"public"."payroll"'})
    said = replay(url, *more)
    assert (said.exit_code, "REPLAY_IMPOSSIBLE" in said.output, "payroll" in said.output) == (6, True, True)
    assert admin.execute("SELECT count(*) FROM payroll").fetchone() == (0,)


@pytest.mark.parametrize("options", [{"schema_evolution": "addColumns"}, {"create_table": True}], ids=str)
def test_no_table_is_altered_or_created(url, admin, role, options):
    """The administrator may do that, where the role may not."""
    struct = t.StructType([*STRUCT.fields, t.StructField("more", t.StringType())])
    how = recorded(EVENTS, encoded_columns(struct))
    put(
        admin,
        role,
        row_data=Jsonb({"id": 1, "name": "n", "more": "x"}),
        destination={**how, "options": {"mode": "append", **options}},
    )
    assert "REPLAY_IMPOSSIBLE" in replay(url, "--yes").output
    assert admin.execute("SELECT * FROM events").description is not None
    columns = admin.execute("SELECT count(*) FROM information_schema.columns WHERE table_name = 'events'").fetchone()
    assert columns == (2,)


def test_what_is_to_be_done_is_shown_before(url, admin, role):
    """An honest letter, and one for another table: both tables, and how they are written, are shown without --yes."""
    put(admin, role)
    payroll = {**recorded(EVENTS, encoded_columns(STRUCT)), "table": '"public"."payroll"'}
    put(admin, role, target="public.payroll", destination=payroll)
    said = replay(url)
    assert said.exit_code == 0
    assert "1 into public.events (mode append): id 1." in said.output
    assert '1 into "public"."payroll" (mode append): id 2.' in said.output


FORGED = "n\nReplayed.\x1b[2K\u202e"


@pytest.mark.parametrize(
    "arguments",
    [["dead-letters", "orders"], ["dead-letters", "orders", "--replay"], ["status", "orders"], ["history", "orders"]],
)
def test_what_it_writes_forges_no_line_of_an_answer(url, admin, role, arguments):
    """Messages, names and values are shown in one line, and no terminal obeys them."""
    put(admin, role, message=FORGED, code=FORGED, column_name=FORGED, target=FORGED)
    put(admin, role)
    with admin.transaction():
        admin.execute(sql.SQL("SET LOCAL ROLE {}").format(sql.Identifier(role)))
        admin.execute("UPDATE pgonce.writers SET run_id = %s, checkpoint_location = %s", [FORGED, FORGED])
        tables = Jsonb({FORGED: 1, "other": 2})
        admin.execute("UPDATE pgonce.batches SET tables = %s, run_id = %s, transport = %s", [tables, FORGED, FORGED])
    said = CliRunner().invoke(app, [*arguments, "--url", url])
    assert "\\nReplayed.\\x1b[2K\\u202e" in said.output
    assert not {"\x1b", "\u202e"} & set(said.output)
    assert not any(line.strip("│ ").startswith("Replayed.") for line in said.output.splitlines())
