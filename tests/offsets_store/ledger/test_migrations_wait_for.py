"""The function pgonce.wait_for: snapshots, bounds, who may call it. (What it answers: status/test_ends_reached.py.)"""

from __future__ import annotations

import threading

import psycopg
import pytest
from support.ledger_history import publish

START = {"0": {"t": {"0": 10}}}
CALL = """SELECT pgonce.wait_for('orders', '{"t": {"0": 10}}', '30 s')"""


@pytest.fixture
def reader(url):
    """A session of somebody who waits; the query stands before the record, and commits it in half a second."""
    publish(url, 0, START)
    later = threading.Timer(0.5, lambda: publish(url, 1, {"0": {"t": {"0": 11}}}, start=START))
    with psycopg.connect(url) as connection:
        yield connection, later
    if later.ident:
        later.join()


def test_it_sees_new_commits_inside_a_transaction(reader):
    """Under READ COMMITTED, the wait ends inside a transaction, and the next statement sees the rows."""
    connection, later = reader
    connection.execute("SELECT end_offsets FROM pgonce.writers")
    later.start()
    assert connection.execute(CALL).fetchone() == (True,)
    assert connection.execute("SELECT end_offsets FROM pgonce.writers").fetchone() == ({"0": {"t": {"0": 11}}},)


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_a_snapshot_that_stays_is_refused(reader, level):
    """Where new commits cannot be seen, the call is refused at once, with a reason."""
    connection, _ = reader
    connection.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
    with pytest.raises(psycopg.errors.InvalidTransactionState, match=f"(?s){level.lower()}.*READ COMMITTED"):
        connection.execute(CALL)


def test_a_wait_of_more_than_ten_minutes_is_refused(reader):
    """Ten minutes are the longest wait."""
    connection, _ = reader
    for timeout in ("'11 minutes'", "'-1 s'", "NULL"):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="timeout"):
            connection.execute(f"SELECT pgonce.wait_for('orders', '{{}}', {timeout})")
        connection.rollback()


def test_other_forms_are_refused(reader):
    """What is not topic to partition to offset is refused, with an example."""
    connection, _ = reader
    ends = ("[1]", "-1", "1.5", '"1"', "null")
    for offsets in ("[]", "3", '{"t": 3}', '{"t": [{"0": 1}]}', *(f'{{"t": {{"0": {end}}}}}' for end in ends)):
        with pytest.raises(psycopg.errors.InvalidParameterValue, match='"topic"'):
            connection.execute("SELECT pgonce.wait_for('orders', %s::jsonb)", [offsets])
        connection.rollback()
