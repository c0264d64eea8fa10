"""Tasks stage rows over connections that break: every row is promised once, and what is not promised is not wanted."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import types as t
from support.fixtures.postgres import url_with
from support.rows import given_rows
from support.with_rooms import write_batch_in_tx

from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger
from pgonce.sink.data_source import stager
from pgonce.sink.data_source.stager import Stager
from pgonce.sink.encoding.encoded_types import ATTEMPT_COLUMN, encoded_columns
from pgonce.sink.encoding.unfit_rows import UnfitRows
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagedRows, StagingTable

STRUCT = t.StructType([t.StructField("id", t.LongType())])
TABLE = StagingTable("query", "events", "run", 7)
ATTEMPT = 12


def batches(count, *, rows=100):
    """So many Arrow batches, given once, as Spark does."""
    return iter([
        pa.record_batch({"id": pa.array(range(n * rows, (n + 1) * rows), pa.int64())}) for n in range(count)
    ])  # fmt: skip


def stage(url, source, retry_timeout=20.0):
    """Stage the batches as a task would; what it promises."""
    return Stager(url, TABLE, STRUCT, ATTEMPT, retry_timeout).stage(source)


def published(url, promised):
    """The ids that a commit puts into the target, in order."""
    rows = sum(count for _, count in promised)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE events (id bigint)")
        everything = given_rows(encoded_columns(STRUCT), rows, list, StagedRows(TABLE, promised))
        write_batch_in_tx(connection, destination("events", "append", (), None), everything)
        return [row[0] for row in connection.execute("SELECT id FROM events ORDER BY id").fetchall()]


def test_rows_are_staged_copy_by_copy(url, monkeypatch):
    """A partition larger than what is held goes in several COPYs, each under a mark of its own."""
    monkeypatch.setattr(stager, "COPY_BYTES", 5000)
    promised = stage(url, batches(10))
    assert len({mark for mark, _ in promised}) == len(promised) > 2
    assert published(url, promised) == list(range(1000))


@pytest.mark.parametrize("cuts", [1, 3])
def test_a_cut_copy_is_done_again(cuts, url, proxy, monkeypatch):
    """Lines that are cut in the midst of a COPY cost further tries, and no row is lost or doubled."""
    monkeypatch.setattr(stager, "COPY_BYTES", 5000)
    proxy.cut_in_copy(after_bytes=4000, times=cuts)
    promised = stage(proxy.url, batches(10))
    assert proxy.hits["cut_in_copy"] == cuts
    assert published(url, promised) == list(range(1000))


def test_a_copy_whose_answer_was_lost_is_done_under_another_mark(url, monkeypatch):
    """Rows of which nobody knows whether they are there are staged once more, and only the second ones are wanted."""
    copied = []
    stage_rows = stager.stage_rows

    def losing_the_first_answer(*arguments):
        stage_rows(*arguments)
        copied.append(1)
        if len(copied) == 1:
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(stager, "stage_rows", losing_the_first_answer)
    promised = stage(url, batches(3))
    with psycopg.connect(url) as connection:
        there = connection.execute(f"SELECT count(*) FROM {TABLE.qualified_name}".encode()).fetchone()
    assert there == (600,)
    assert published(url, promised) == list(range(300))


def test_a_server_that_comes_back_in_time_is_no_failure(url, proxy, caplog):
    """While Postgres is away a task waits, says so once a try, and then stages all of its rows."""
    ensure_ledger(proxy.url)
    proxy.stop()
    threading.Timer(1.0, proxy.start).start()
    with caplog.at_level(logging.WARNING, "pgonce"):
        promised = stage(proxy.url, batches(3))
    assert published(url, promised) == list(range(300))
    said = [record.getMessage() for record in caplog.records]
    assert len(said) >= 2
    assert all(line.startswith("batch 7 of query query: staging again in ") for line in said)


def test_a_task_without_a_way_to_postgres_says_where_it_is_and_what_helps(url, proxy):
    """The driver may well have a way: so the text names the task's host, and the options for such executors."""
    proxy.stop()
    with pytest.raises(PgonceError, match="CONNECT_FAILED") as caught:
        stage(proxy.url, batches(3), retry_timeout=0.5)
    assert caught.value.what.startswith(f"A task on host {socket.gethostname()} has more rows than inlineBytes")
    assert "could not be reached" in caught.value.what
    for option in ("executorUrl", "inlineBytes", "receiver"):
        assert option in caught.value.remedy


def test_an_error_in_making_rows_is_not_seen_by_postgres(url, postgres_server):
    """Its log may be read by others than may read the rows; and the COPY leaves none behind."""

    def broken():
        yield from batches(1)
        raise ValueError("zq7hunter")

    with pytest.raises(ValueError, match="zq7hunter"):
        stage(url, broken())
    log = postgres_server.embedded.log_text() if postgres_server.embedded else "COPY from stdin failed"
    assert "COPY from stdin failed" in log
    assert "zq7hunter" not in log
    with psycopg.connect(url) as connection:
        there = connection.execute(f"SELECT count(*) FROM {TABLE.qualified_name}".encode()).fetchone()
    assert there == (0,)


def test_what_does_not_pass_is_not_tried_again(url, caplog):
    """An error that a second try would meet again fails the task at once."""
    ensure_ledger(url)
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TABLE {TABLE.qualified_name} (something_else text)".encode())
    with caplog.at_level(logging.WARNING, "pgonce"), pytest.raises(PgonceError, match="STAGING_FAILED.*SQLSTATE"):
        stage(url, batches(3))
    assert caplog.records == []


def test_a_row_that_postgres_cannot_hold_is_called_too_large(url):
    """Neither a route nor a privilege is missing, and the target could not take the row either."""
    struct = t.StructType([t.StructField(f"c{n}", t.LongType()) for n in range(1200)])
    wide = pa.record_batch([pa.array([n]) for n in range(1200)], names=struct.names)
    with pytest.raises(PgonceError, match="ROW_TOO_LARGE.*54000"):
        Stager(url, TABLE, struct, ATTEMPT, 20).stage(iter([wide]))


def rows_with_nul(count, *, bad):
    """So many Arrow batches of ten rows with a text, of which one is bad in each of the batches ``bad``."""
    for n in range(count):
        names = ["\0" if n in bad and row == 5 else "fits" for row in range(10)]
        yield pa.record_batch({"id": pa.array(range(n * 10, (n + 1) * 10), pa.int64()), "name": pa.array(names)})


@pytest.mark.parametrize("cuts", [0, 1, 3])
def test_a_row_that_is_put_aside_is_found_once_however_often_its_copy_is_repeated(cuts, url, proxy, monkeypatch):
    """It is in none of the COPYs, is not promised, and a cut line does not find it again."""
    struct = t.StructType([*STRUCT.fields, t.StructField("name", t.StringType())])
    monkeypatch.setattr(stager, "COPY_BYTES", 2500)
    if cuts:
        proxy.cut_in_copy(after_bytes=1500, times=cuts)
    unfit = UnfitRows(9)
    tries = Stager(proxy.url, TABLE, struct, ATTEMPT, 20.0, unfit=unfit)
    promised = tries.stage(rows_with_nul(30, bad={0, 3, 29}))
    assert proxy.hits["cut_in_copy"] == cuts
    assert [json.loads(row.row_data)["id"] for row in unfit.rows] == [5, 35, 295]
    assert sum(rows for _, rows in promised) == 297
    with psycopg.connect(url) as connection:
        marks = [mark for mark, _ in promised]
        staged = f"SELECT id FROM {TABLE.qualified_name} WHERE {ATTEMPT_COLUMN} = ANY (%s) ORDER BY id".encode()
        ids = [row[0] for row in connection.execute(staged, [marks])]
    assert ids == [n for n in range(300) if n not in (5, 35, 295)]


def test_rows_are_staged_for_longer_than_the_role_allows_a_statement(url):
    """A task encodes its rows while it copies them."""

    def slowly():
        for batch in batches(3):
            time.sleep(0.3)
            yield batch

    promised = stage(url_with(url, options="-cstatement_timeout=200"), slowly(), retry_timeout=0)
    assert published(url, promised) == list(range(300))
