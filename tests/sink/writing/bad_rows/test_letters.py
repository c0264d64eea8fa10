"""What a dead letter says of its row, and of why it is one."""

from __future__ import annotations

import json
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest
from pyspark.sql import types as t
from support.bad_rows import committed, unfit_row
from support.batches import make_batch, make_planned_batch
from support.routed_rows import commit as commit_routed
from support.routed_rows import routed, routes
from support.typed_rows import staged_rows, typed_rows
from support.with_rooms import work_into, write_batch_in_tx

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import PgonceError, TargetError
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.encoding.unfit_rows import UnfitRow
from pgonce.sink.options.destination import destination
from pgonce.sink.options.position_columns import PositionColumns
from pgonce.sink.staging import StagingTable
from pgonce.sink.writing.bad_rows import letters

COLUMNS = {
    "id": t.LongType(),
    "topic": t.StringType(),
    "partition": t.IntegerType(),
    "offset": t.LongType(),
    "name": t.StringType(),
    "parts": t.ArrayType(t.IntegerType()),
}
TABLE = 'CREATE TABLE events (id bigint, topic text, partition int, "offset" bigint, name varchar(3), parts int[])'
ROWS = [(1, "orders", 0, 7, "abc", [1]), (2, "orders", 1, 9, "long 'n' {odd}", [2, None])]
WHERE = destination("events", dead_letters=True)


def commit(url, rows, number=0, where=WHERE):
    """Commit a batch of these rows."""
    return commit_batch(CommitSettings(url, Remedies()), make_planned_batch(number), work_into(None, where, rows))


@pytest.mark.parametrize("named", [True, False])
def test_it_has_the_row_and_where_it_comes_from(url, admin, named):
    """The query, the sink, the batch, the table, the position in Kafka, named or not, each value, and why."""
    admin.execute(TABLE.encode())
    rows = typed_rows(COLUMNS, ROWS)
    if named:
        object.__setattr__(rows, "positions", PositionColumns("topic", "partition", "offset", written=True))
    commit(url, rows)
    found = admin.execute(
        "SELECT query_id, sink_name, batch_id, target, position, row_data, message FROM pgonce.dead_letters"
    ).fetchall()
    assert found == [(
        "q1",
        "public.events",
        0,
        "public.events",
        {"topic": "orders", "partition": 1, "offset": 9},
        dict(zip(COLUMNS, ROWS[1], strict=True)),
        "value too long for type character varying(3)",
    )]  # fmt: skip


def test_rows_that_could_not_be_encoded_are_there_too(url, admin):
    """They count as dead letters of the batch, and not among its rows."""
    admin.execute(TABLE.encode())
    unfit = UnfitRow(
        json.dumps({"id": 5, "name": {"base64": "AA=="}}), "name", "NUL_IN_TEXT", "A NUL.", ("orders", 0, 3)
    )
    of_kafka = {"topic": "orders", "partition": 0, "offset": 4, "name": {"base64": "AA=="}}
    commit(url, replace(typed_rows(COLUMNS, ROWS), unfit=lambda: (unfit,)))
    commit(
        url,
        replace(
            typed_rows(COLUMNS, ROWS[:1]), unfit=lambda: (replace(unfit, row_data=json.dumps(of_kafka), place=None),)
        ),
        1,
    )
    found = admin.execute(
        "SELECT position, row_data, column_name, code, message FROM pgonce.dead_letters ORDER BY code, dead_letter_id"
    ).fetchall()
    assert found[2][:2] == ({"topic": "orders", "partition": 0, "offset": 4}, of_kafka)
    assert found[1] == (
        {"topic": "orders", "partition": 0, "offset": 3},
        {"id": 5, "name": {"base64": "AA=="}},
        "name",
        "NUL_IN_TEXT",
        "A NUL.",
    )
    assert found[0][3] == "22001"
    assert admin.execute("SELECT rows, counts FROM pgonce.batches").fetchone() == (1, {"written": 1, "dead_letters": 2})


def test_rows_that_are_stored_already_count_neither_as_written_nor_as_dead(url, admin):
    """They were left out before any of them was tried."""
    admin.execute(TABLE.encode())
    positions = PositionColumns("topic", "partition", "offset", written=True)
    rows = [(n, "orders", 0, n, "abc", [n]) for n in range(4)] + [(4, "orders", 0, 4, "long", [])]
    given = staged_rows(url, StagingTable("q1", "events", "run 1", 0), COLUMNS, rows)
    staged = replace(given.staged, positions=positions, stored={"0": {"orders": {"0": 2}}})
    given = replace(given, staged=staged, positions=positions)
    with psycopg.connect(url) as connection:
        result = write_batch_in_tx(connection, WHERE, given, batch=make_batch())
    assert result.counts == {"written": 2, "dead_letters": 1}
    assert admin.execute("SELECT id FROM events ORDER BY id").fetchall() == [(2,), (3,)]


def test_it_names_the_table_that_refused_it_and_the_log_says_how_many_there_are(url, admin, caplog):
    """Not the copy of the table by which the row was found."""
    admin.execute(b"CREATE TABLE events (id bigint, name text NOT NULL)")
    columns = {"id": t.LongType(), "name": t.StringType()}
    commit(url, typed_rows(columns, [(1, None), (2, "abc"), (3, None)]))
    (message,) = admin.execute("SELECT DISTINCT message FROM pgonce.dead_letters").fetchone()
    assert message == 'null value in column "name" of relation "events" violates not-null constraint'
    assert (
        "batch 0 of query q1: rows for public.events that cannot be written, put aside if the batch "
        "is committed: 2 (`pgonce dead-letters QUERY`)"
    ) in caplog.messages


# What may lose letters, and the code with which the batch is refused.
DROPS = """
CREATE FUNCTION dropped() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
CREATE TRIGGER dropped BEFORE INSERT ON pgonce.dead_letters FOR EACH ROW {} EXECUTE FUNCTION dropped()
"""
LOSING = {
    "trigger": (DROPS.format(""), "TRIGGER_CHANGED_ROWS"),
    "trigger for some": (DROPS.format("WHEN (new.code = '22001')"), "TRIGGER_CHANGED_ROWS"),
    "rule": ("CREATE RULE r AS ON INSERT TO pgonce.dead_letters DO INSTEAD NOTHING", "TRIGGER_CHANGED_ROWS"),
    "policy": ("ALTER TABLE pgonce.dead_letters ENABLE ROW LEVEL SECURITY", "LEDGER_NOT_PERMITTED"),
}
EVENTS = "CREATE TABLE events (id bigint, name varchar(3) NOT NULL, amount bigint)"
BAD = [(1, "abc", 1), (2, "long", 1), (3, None, 1)]


@pytest.mark.parametrize("kind", LOSING)
def test_a_batch_whose_letters_would_be_lost_is_refused(kind, url, admin, login):
    """Nothing is written, because the rows that cannot be would be nowhere."""
    ensure_ledger(url)
    ddl, code = LOSING[kind]
    admin.execute(ddl)
    admin.execute(EVENTS)
    for grant in (*grants(login.user), f"GRANT INSERT, SELECT ON events TO {login.user}"):
        admin.execute(grant)
    with pytest.raises(PgonceError, match=rf"\[{code}\]") as raised:
        committed(login.url if kind == "policy" else url, BAD)
    assert "dead_letters" in str(raised.value)
    assert admin.execute("SELECT count(*) FROM events").fetchone() == (0,)
    assert admin.execute("SELECT count(*) FROM pgonce.batches").fetchone() == (0,)


def test_rows_that_could_not_be_encoded_or_have_no_route_are_not_lost_either(url, admin):
    """Whatever puts a row aside counts what the table has taken."""
    ddl, code = LOSING["trigger"]
    admin.execute(ddl)
    admin.execute(
        "CREATE TABLE events (id bigint, name text, amount bigint); CREATE TABLE orders (id bigint, name text)"
    )
    with pytest.raises(TargetError, match=code):
        committed(url, BAD[:1], not_encoded=(unfit_row(id=9),))
    where = routes({"orders": {}}, unknown_routes="deadLetters", dead_letters=True)
    with pytest.raises(TargetError, match=code):
        commit_routed(url, make_planned_batch(0), where, routed(("orders", 1, "a"), ("taxes", 2, "b")))


def not_encoded(number, size=10):
    """As many rows that could not be encoded."""
    return tuple(
        UnfitRow(json.dumps({"id": n, "name": "x" * size}), "name", "NUL_IN_TEXT", "A NUL.") for n in range(number)
    )


@pytest.mark.parametrize("characters", [1, 100])
def test_many_large_rows_are_written_in_several_statements(url, admin, monkeypatch, characters):
    """However large they are together, all of them are there, in their order."""
    monkeypatch.setattr(letters, "_STATEMENT_CHARACTERS", characters)
    admin.execute(TABLE.encode())
    commit(url, replace(typed_rows(COLUMNS, ROWS[:1]), unfit=lambda: not_encoded(20)))
    found = admin.execute("SELECT row_data -> 'id' FROM pgonce.dead_letters ORDER BY dead_letter_id").fetchall()
    assert found == [(n,) for n in range(20)]


def test_a_row_that_jsonb_cannot_hold_refuses_the_batch(url, admin, monkeypatch):
    """With a reason, where Postgres would close the connection on the statement."""
    monkeypatch.setattr(letters, "_LARGEST_JSONB", 1000)
    admin.execute(TABLE.encode())
    rows = typed_rows(COLUMNS, ROWS[:1])
    with pytest.raises(TargetError, match=r"\[ROW_TOO_LARGE\]") as refused:
        commit(url, replace(rows, unfit=lambda: not_encoded(1, 1000)))
    assert "'name' (NUL_IN_TEXT)" in refused.value.what
    assert admin.execute("SELECT id FROM events").fetchall() == []


@pytest.mark.parametrize("dead_letters", [False, True])
def test_a_long_value_is_not_repeated_in_what_is_said_of_it(url, admin, dead_letters):
    """Postgres repeats the whole text that a type does not take; an error and a letter have the beginning of it."""
    admin.execute("CREATE TABLE tokens (id bigint, name uuid)")
    rows = typed_rows({"id": t.LongType(), "name": t.StringType()}, [(1, str(UUID(int=1))), (2, "z" * 100_000)])
    where = destination("tokens", dead_letters=dead_letters)
    if not dead_letters:
        with pytest.raises(TargetError) as refused:
            commit(url, rows, where=where)
        said = str(refused.value)
    else:
        commit(url, rows, where=where)
        said, name = admin.execute("SELECT message, row_data ->> 'name' FROM pgonce.dead_letters").fetchone()
        assert len(name) == 100_000
    assert 'type uuid: "zzz' in said
    assert len(said) < 3000
