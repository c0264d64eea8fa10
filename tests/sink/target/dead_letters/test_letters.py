"""What a dead letter says of its row, and of why it is one."""

from __future__ import annotations

import json

import psycopg
from pyspark.sql import types as t
from support.batches import make_batch, make_planned_batch
from support.rows import GivenRows
from support.sent_rows import arrow_rows
from support.typed_rows import struct_of, typed_rows

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.offsets_store.verdict.facts import Remedies
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.positions.columns import position_columns
from pgonce.sink.settings import destination
from pgonce.sink.staging.staged_rows import StagedRows
from pgonce.sink.staging.table import ATTEMPT_COLUMN, StagingTable, stage_rows
from pgonce.sink.target.publish import publication, publish_rows_in_tx
from pgonce.sink.unfit_row import UnfitRow

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


def commit(url, rows, number=0):
    """Commit a batch of these rows."""
    return commit_batch(CommitSettings(url, Remedies()), make_planned_batch(number), publication(None, WHERE, rows))


def test_it_has_the_row_and_where_it_comes_from(url, admin):
    """The query, the sink, the batch, the table, the position in Kafka, each value, and Postgres's words."""
    admin.execute(TABLE.encode())
    rows = typed_rows(COLUMNS, ROWS)
    object.__setattr__(rows, "positions", position_columns(("topic", "partition", "offset"), written=True))
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
    rows = typed_rows(COLUMNS, ROWS)
    object.__setattr__(rows, "not_encoded", (unfit,))
    commit(url, rows)
    found = admin.execute(
        "SELECT position, row_data, column_name, code, message FROM pgonce.dead_letters ORDER BY code"
    ).fetchall()
    assert found[1] == (
        {"topic": "orders", "partition": 0, "offset": 3},
        {"id": 5, "name": {"base64": "AA=="}},
        "name",
        "NUL_IN_TEXT",
        "A NUL.",
    )
    assert found[0][3] == "22001"
    assert admin.execute("SELECT rows, counts FROM pgonce.batches").fetchone() == (
        1,
        {"written": 1, "dead_letters": 2},
    )


def test_a_replay_writes_none_twice(url, admin):
    """They are written by the transaction that records the batch."""
    admin.execute(TABLE.encode())
    assert commit(url, typed_rows(COLUMNS, ROWS)) is Verdict.NEW
    settings = CommitSettings(url, Remedies())
    again = make_planned_batch(0, run_id="run 2")
    work = publication(None, WHERE, typed_rows(COLUMNS, ROWS))
    assert commit_batch(settings, again, work) is Verdict.REPLAY
    assert admin.execute("SELECT count(*) FROM pgonce.dead_letters").fetchone() == (1,)


def test_rows_that_are_stored_already_count_neither_as_written_nor_as_dead(url, admin):
    """They were left out before any of them was tried."""
    admin.execute(TABLE.encode())
    ensure_ledger(url)
    struct, positions = struct_of(COLUMNS), position_columns(("topic", "partition", "offset"), written=True)
    rows = [(n, "orders", 0, n, "abc", [n]) for n in range(4)] + [(4, "orders", 0, 4, "long", [])]
    table = StagingTable("q1", "events", "run 1", 0)
    body = CopyEncoder(struct, extra={ATTEMPT_COLUMN: 3}).encode(arrow_rows(struct, rows))
    stage_rows(url, table, encoded_columns(struct), [body])
    staged = StagedRows(table, ((3, len(rows)),), positions, {"0": {"orders": {"0": 2}}})
    given = GivenRows(encoded_columns(struct), len(rows), list, staged, positions)
    with psycopg.connect(url) as connection:
        result = publish_rows_in_tx(connection, WHERE, given, batch=make_batch())
    assert result.counts == {"written": 2, "dead_letters": 1}
    assert admin.execute("SELECT id FROM events ORDER BY id").fetchall() == [(2,), (3,)]


def test_it_names_the_table_that_refused_it_and_the_log_says_how_many_there_are(url, admin, caplog):
    """Not the copy of the table by which the row was found."""
    admin.execute(b"CREATE TABLE events (id bigint, name text NOT NULL)")
    columns = {"id": t.LongType(), "name": t.StringType()}
    commit(url, typed_rows(columns, [(1, None), (2, "abc"), (3, None)]))
    (message,) = admin.execute("SELECT DISTINCT message FROM pgonce.dead_letters").fetchone()
    assert message == 'null value in column "name" of relation "events" violates not-null constraint'
    said = "batch 0 of query q1: rows for public.events that cannot be written, put aside in pgonce.dead_letters: 2"
    assert any(record.message.startswith(said) for record in caplog.records)
