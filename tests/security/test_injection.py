"""
Names and texts from outside are only names and texts: none becomes SQL, and the legal ones work.

Covers: offsets_store.postgres.text.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql
from support.batches import make_planned_batch
from support.committed_batch import commit, commit_function, inline, nothing_else_happens, quoted, rows_in
from support.fixtures.postgres import made_database
from support.with_rooms import work_into
from typer.testing import CliRunner

from pgonce import PostgresBatchWriter, transactional_batch
from pgonce.cli.main import app
from pgonce.offsets_store.checkpoint.log_entries import parse_offset_log
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import ConfigurationError, PgonceError
from pgonce.offsets_store.ledger.migrations import grants, init_sql
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.options.destination import destination
from pgonce.sink.options.sink_options import parse_options

# Each fits into 63 bytes, so Postgres takes it for a table, a column and a text.
LEGAL = (
    'orders"; DROP TABLE canary; --',
    "orders'; DROP TABLE canary; --",
    "orders'); DELETE FROM canary; COMMIT; --",
    "orders; COPY canary TO PROGRAM 'touch /tmp/canary'",
    "\\'; DROP TABLE canary; --",
    "\\",
    "E'\\x41'",
    "$$; DROP TABLE canary; $$",
    "$a$ $a$",
    '"',
    "'",
    '"a"."b"',
    "a.b",
    "pgonce.writers",
    "a, b",
    "%",
    "%s",
    "%%s",
    "%(table)s",
    "{}",
    "{0.__class__}",
    ":id",
    "::text",
    "?",
    "select",
    "USER",
    "excluded",
    "null",
    " leading and trailing ",
    "line\nend; DROP TABLE canary",
    "-- comment",
    "/* comment",
    'U&"\\0041"',
    "\\u0041",
    "\u202egnihton\u202c",
    "zero\u200bwidth",
    "\x1b[31mred",
    "[bold]rich[/italic]",
    "Größe \U0001f600",
    "é" * 31,
    "x" * 63,
)
LONG = "x" * 63
UNSTORABLE = ("nul\0", "half \ud800")


@pytest.fixture
def connected(shared_url: str) -> Iterator[psycopg.Connection]:
    """A connection that may do anything to one database for all names, whose ledger has each of them."""
    with psycopg.connect(shared_url, autocommit=True) as connection:
        yield connection


def write_in_every_way(url: str, admin: psycopg.Connection, name: str) -> None:
    """Write into a table of this name, with columns, keys, sink, query, run, checkpoint and topics of this name."""
    query_id = secrets.token_hex(8)
    table, names = quoted(name), (name, "order by" if name != "order by" else "by order")
    same = {"query_id": query_id, "run_id": name, "query_name": name, "checkpoint_location": name}
    where = {"sink_name": name, "names": names}

    def entry(number: int) -> str:
        topics = json.dumps({name: {"0": number + 1}}, ensure_ascii=False)
        return f'v1\n{{"batchTimestampMs":{number}}}\n{topics}'

    def batch(number: int):
        ends = {"start": {name: {name: {"0": number}}}, "end": {name: parse_offset_log(entry(number)).offsets["0"]}}
        text = {"offset_log": entry(number), "previous_offset_log": entry(number - 1) if number else None}
        return make_planned_batch(number, **same, **ends, **text)

    upsert = destination(table, "upsert", (name,), names[1], create_table=True)
    assert commit(url, batch(0), upsert, [(1, "old"), (1, "older"), (2, name)], **where) is Verdict.NEW
    assert rows_in(admin, f"public.{table}") == [(1, "older"), (2, name)]
    upsert = destination(f"public.{table}", "upsert", (name,))
    commit(url, batch(1), upsert, [(1, "new")], **where, staged=True)
    assert rows_in(admin, f"public.{table}") == [(1, "new"), (2, name)]
    commit(url, batch(2), destination(table), [(3, name)], **where, staged=True)
    commit(url, batch(3), destination(table), [(4, name)], **where)
    assert rows_in(admin, f"public.{table}") == [(1, "new"), (2, name), (3, name), (4, name)]
    commit(url, batch(4), destination(table, "complete"), [(5, name)], **where)
    # Names in its SQL are its own, values are parameters.
    insert = f"INSERT INTO {table.replace('%', '%%')} VALUES (%s, %s)"
    commit_function(url, batch(5), name, lambda tx, _: tx.execute(insert, [6, name]))
    assert rows_in(admin, f"public.{table}") == [(5, name), (6, name)]

    store = OffsetsStore(url)
    writer = store.latest(query_id)
    assert (writer.sink_name, writer.query_name, writer.run_id, writer.checkpoint_location) == (name,) * 4
    assert (writer.batch_id, writer.end_offsets) == (5, {name: {name: {"0": 6}}})
    kept = "SELECT offset_log FROM pgonce.batches JOIN pgonce.writers USING (writer_id) WHERE query_id = %s ORDER BY 1"
    assert [text for (text,) in admin.execute(kept, [query_id])] == [entry(number) for number in range(6)]
    assert store.latest(name, sink=name) == writer
    assert [recorded.rows for recorded in store.history(name, sink=name)] == [1, 1, 1, 1, 1, 3]
    admin.execute(f"DROP TABLE public.{table}".encode())
    admin.execute("DELETE FROM pgonce.writers WHERE query_id = %s", [query_id])


def refused_by(attempt):
    """The code of our error that an attempt raises, or None."""
    try:
        attempt()
    except PgonceError as error:
        return error.code


@pytest.mark.parametrize("name", LEGAL, ids=ascii)
def test_odd_names_and_texts_work_everywhere_and_do_nothing_else(name, connected, shared_url):
    """Every mode, transport and text of the ledger takes it as it is, byte for byte, and no other table notices."""
    with nothing_else_happens(connected):
        write_in_every_way(shared_url, connected, name)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from([*LEGAL, *"\"'\\;%:{}$ \n.", "é", "--"]), min_size=1, max_size=6))
def test_mixtures_of_odd_names_work_too(parts, connected, shared_url):
    """What is harmless by itself stays so in the company of others."""
    name = "".join(parts).encode()[:63].decode(errors="ignore")
    with nothing_else_happens(connected):
        write_in_every_way(shared_url, connected, name)


@pytest.mark.parametrize("name", LEGAL, ids=ascii)
def test_an_odd_name_without_quotes_is_a_name_or_refused(name, connected, shared_url):
    """The option table is read as Postgres reads names: what is none is refused, and never runs."""
    with nothing_else_happens(connected):
        refusal = refused_by(
            lambda: commit(shared_url, make_planned_batch(query_id=name), destination(name, create_table=True))
        )
        assert refusal in (None, "BAD_TABLE_NAME", "TARGET_MISSING", "COLUMN_UNKNOWN")
        if refusal is None:
            made = connected.execute("SELECT pg_catalog.to_regclass(%s)::text", [name]).fetchone()
            assert made is not None
            assert made[0] is not None
            assert rows_in(connected, made[0]) == [(1, "one"), (2, "two")]
            connected.execute(f"DROP TABLE {made[0]}".encode())
            connected.execute("DELETE FROM pgonce.writers WHERE query_id = %s", [name])


@pytest.mark.parametrize("name", LEGAL, ids=ascii)
def test_the_command_line_shows_odd_names_and_obeys_none(name, connected, shared_url):
    """Neither a terminal nor a table's markup takes a name for a command; --json has it unchanged."""
    plain = destination("shown", create_table=True)
    batch = make_planned_batch(
        query_id="shown", query_name=name, checkpoint_location=name, start=None, end={name: {name: {"0": 1}}}
    )
    commit(shared_url, batch, plain, sink_name=name)
    named = (["status", name], ["offsets", name], ["history", name], ["offsets", "no such"])
    for arguments in (["status"], ["status", "--json"], *named):
        command, *rest = arguments
        rest = rest if rest == ["--json"] or not rest else ["--", *rest]
        shown = CliRunner().invoke(app, [command, "--url", shared_url, *rest])
        assert shown.exit_code == (3 if "no such" in arguments else 0), shown.output
        assert "\x1b" not in shown.output
    assert not isinstance(shown.exception, psycopg.Error)
    connected.execute("DROP TABLE shown; DELETE FROM pgonce.writers WHERE query_id = 'shown'")


@pytest.mark.parametrize("name", LEGAL, ids=ascii)
def test_the_words_about_a_querys_past_are_only_texts(name, connected, shared_url):
    """An odd id in replaces finds the query of that id, and nothing else."""
    plain = destination("heir", create_table=True)
    commit(shared_url, make_planned_batch(query_id=name), plain)
    heir = make_planned_batch(query_id="heir", start={"0": {"t": {"0": 10}}}, end={"0": {"t": {"0": 20}}})
    heirs = CommitSettings(url=shared_url, remedies=Remedies(replaces=name), retry_timeout=0)
    with nothing_else_happens(connected):
        assert commit_batch(heirs, heir, work_into(None, plain, inline([(3, name)]))) is Verdict.NEW
    assert connected.execute("SELECT replaced_by FROM pgonce.writers WHERE query_id = %s", [name]).fetchone() == (
        "heir",
    )
    connected.execute("DELETE FROM pgonce.writers; DROP TABLE heir")


@pytest.mark.parametrize("name", LEGAL, ids=ascii)
def test_a_grant_names_a_role_and_nothing_more(name, connected):
    """The role of `pgonce init --role` is quoted, run or printed."""
    with nothing_else_happens(connected), connected.transaction(force_rollback=True):
        connected.execute("DROP SCHEMA IF EXISTS pgonce, pgonce_staging CASCADE")
        create = sql.SQL("CREATE ROLE {}").format(sql.Identifier(name))
        if "\n" in name and connected.info.server_version >= 190000:
            with pytest.raises(psycopg.errors.InvalidParameterValue):
                connected.execute(create)
            return
        connected.execute(create)
        connected.execute(init_sql(name).removeprefix("BEGIN;").removesuffix("COMMIT;\n").encode())
        for statement in grants(name):
            connected.execute(statement.encode())
        granted = connected.execute("SELECT has_table_privilege(%s, 'pgonce.writers', 'INSERT')", [name]).fetchone()
        assert granted == (True,)


def test_a_name_that_postgres_would_cut_is_refused(connected, shared_url):
    """Two names that agree in their first 63 bytes never become one, whether or not that table is there."""
    new = {"create_table": True}
    for table in (f"{LONG}1", f"{LONG}2", quoted(f"{LONG}é")):
        with nothing_else_happens(connected), pytest.raises(PgonceError, match="BAD_TABLE_NAME"):
            commit(shared_url, make_planned_batch(query_id="cut"), destination(table, **new))
    connected.execute(f"CREATE TABLE {LONG} (id bigint, name text)".encode())
    for table in (f"{LONG}1", f"public.{LONG}2", f"{'p' * 64}.{LONG}"):
        with pytest.raises(PgonceError, match="BAD_TABLE_NAME|TARGET_MISSING|TARGET_MISSING"):
            commit(shared_url, make_planned_batch(query_id="cut"), destination(table))
    assert rows_in(connected, LONG) == []
    connected.execute(f"DROP TABLE {LONG}".encode())


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.parametrize("name", [LONG + "x", "é" * 32, "", *UNSTORABLE], ids=ascii)
def test_a_column_that_postgres_cannot_have_is_refused(name, staged, connected, shared_url):
    """Empty names, names past 63 bytes and names with a NUL are refused before a table is made for them."""
    where = destination("columns", create_table=True)
    with nothing_else_happens(connected), pytest.raises(PgonceError, match="COLUMN_UNKNOWN"):
        commit(shared_url, make_planned_batch(query_id="columns"), where, names=("id", name), staged=staged)


@pytest.mark.parametrize("text", UNSTORABLE, ids=ascii)
@pytest.mark.parametrize("option", ["table", "keys", "orderBy", "sinkName", "queryName", "replaces", "url"])
def test_an_option_that_postgres_cannot_hold_is_refused(option, text):
    """A NUL would end a name in the middle; it is refused when the options are read."""
    given = {"table": "events", "checkpointLocation": "/ckpt", "mode": "upsert", "keys": "id", option: text}
    if option == "url":
        given["url"] = f"host=db dbname='{text}'"
    with pytest.raises(ConfigurationError, match="BAD_OPTION|BAD_URL"):
        OffsetsStore(parse_options(given, overwrite=False).commit.url)


@pytest.mark.parametrize("text", UNSTORABLE, ids=ascii)
def test_an_argument_that_postgres_cannot_hold_is_refused(text):
    """The ways in through foreachBatch refuse it when they are made."""
    for arguments in ({"table": text}, {"table": "t", "sink_name": text}, {"table": "t", "replaces": text}):
        with pytest.raises(ConfigurationError, match="BAD_OPTION"):
            PostgresBatchWriter("", **arguments)
    with pytest.raises(ConfigurationError, match="BAD_OPTION"):
        transactional_batch("", name=text)


def test_what_cannot_be_sent_is_not_called_a_lost_connection(connected, shared_url):
    """A NUL in a query's name, which Spark lets pass, stops the batch with an error of ours that says so."""
    where = destination("named", create_table=True)
    with nothing_else_happens(connected), pytest.raises(PgonceError, match="LEDGER_FAILED.*NUL"):
        commit(shared_url, make_planned_batch(query_id="named", query_name="a\0b"), where)


def test_values_reach_a_database_of_another_encoding_as_they_are(postgres_server):
    """Rows are sent as UTF-8 whatever the database's encoding: a LATIN1 one stores é, and refuses what it has not."""
    how = "TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    with made_database(postgres_server.url("postgres"), how) as name:
        url, names = postgres_server.url(name), ("id", "Größe")
        new = destination('"Größe"', create_table=True)
        for batch_id, staged in enumerate((False, True)):
            commit(url, make_planned_batch(batch_id), new, [(batch_id, "é")], names=names, staged=staged)
        with psycopg.connect(url, autocommit=True, client_encoding="UTF8") as admin:
            assert rows_in(admin, '"Größe"') == [(0, "é"), (1, "é")]
        there = destination('"Größe"')
        with pytest.raises(PgonceError, match="VALUE_NOT_STORABLE"):
            commit(url, make_planned_batch(2), there, [(2, "漢")], names=names)
        engine_for(url).dispose()
