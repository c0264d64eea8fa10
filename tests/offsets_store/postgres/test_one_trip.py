"""
Several statements in one round trip: their order, their answers, and which of them has failed.

Covers: offsets_store.ledger.compiled.
"""

from uuid import UUID

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus
from sqlalchemy import BigInteger, Boolean, Text, Uuid, bindparam, cast, func, literal_column, select
from sqlalchemy.dialects.postgresql import JSONB

from pgonce.offsets_store.ledger.compiled import Compiled
from pgonce.offsets_store.postgres.connect import checked_out, driver_connection
from pgonce.offsets_store.postgres.one_trip import Asked, Statement, keep_prepared, one_trip

ASKED = Compiled(select(bindparam("given", type_=Text).label("said"), literal_column("pg_catalog.now()").label("at")))
FAILS = Compiled(select((literal_column("1") / literal_column("0")).label("never")))


def test_each_statement_has_its_answer(url):
    """They run in the order in which they were sent, and each sees what those before it have done."""
    to_set = Compiled(select(func.set_config("DateStyle", "German, DMY", True).label("style")))
    with checked_out(url) as connection:
        driver = driver_connection(connection)
        with one_trip(driver):
            style = Asked(driver, to_set)
            asked = Asked(driver, ASKED, {"given": "50 % of it"})
            assert not asked.is_answered
        assert style.row() == {"style": "German, DMY"}
        row = asked.row()
        assert row["said"] == "50 % of it"
        (now,) = driver.execute("SELECT extract(epoch FROM now())").fetchone()
        assert row["at"].timestamp() == pytest.approx(float(now))


def test_it_is_known_which_statement_has_failed(url):
    """Those before it are answered; it is not, nor are those after it."""
    asked = []

    def ask(driver):
        with one_trip(driver):
            for question, given in ((ASKED, {"given": "a"}), (FAILS, {}), (ASKED, {"given": "b"})):
                one = Asked(driver, question, given)
                asked.append(one)

    with checked_out(url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            ask(driver_connection(connection))
        assert [one.is_answered for one in asked] == [True, *[False] * (len(asked) - 1)]


def test_a_session_that_the_server_has_ended_is_replaced(url, admin):
    """The pool sees it without asking the server, so that no try is lost; a session that lives is used again."""
    pids = []
    for ended in (False, True, False):
        with checked_out(url) as connection:
            pids.append(driver_connection(connection).info.backend_pid)
        if ended:
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pids[-1]])
    assert pids[0] == pids[1] != pids[2]


def test_an_answer_that_is_read_too_early_is_waited_for(url):
    """What was asked so far is a round trip then, and the rest another one."""
    with checked_out(url) as connection:
        driver = driver_connection(connection)
        with one_trip(driver):
            first = Asked(driver, ASKED, {"given": "a"})
            assert first.row()["said"] == "a"
            second = Asked(driver, ASKED, {"given": "b"})
            assert not second.is_answered
        assert second.row() == {"said": "b", "at": first.row()["at"]}


def test_a_block_that_fails_sends_nothing(url):
    """Not even BEGIN; and what is asked afterwards is sent at once."""
    with checked_out(url) as connection:
        driver = driver_connection(connection)

        def fail():
            with one_trip(driver):
                Asked(driver, ASKED, {"given": "a"})
                raise ValueError("made up")

        with pytest.raises(ValueError, match="made up"):
            fail()
        assert driver.info.transaction_status is TransactionStatus.IDLE
        assert Asked(driver, ASKED, {"given": "a"}).row()["said"] == "a"
        assert driver.info.transaction_status is TransactionStatus.INTRANS


@pytest.mark.parametrize(
    "wanted", [{}, {"isolation_level": IsolationLevel.SERIALIZABLE, "read_only": True, "deferrable": False}]
)
def test_a_transaction_begins_as_psycopg_would_begin_it(wanted, url):
    """With the first statement, unless the session commits each by itself."""
    asked = Statement("SELECT current_setting('transaction_isolation'), current_setting('transaction_read_only')")
    with psycopg.connect(url) as connection:
        for name, value in wanted.items():
            setattr(connection, name, value)
        found = Asked(connection, asked).rows()
        assert connection.info.transaction_status is TransactionStatus.INTRANS
        connection.rollback()
        assert found == connection.execute(asked.text).fetchall()
        assert found == [("serializable", "on") if wanted else ("read committed", "off")]
    with psycopg.connect(url, autocommit=True) as connection:
        Asked(connection, asked)
        assert connection.info.transaction_status is TransactionStatus.IDLE


def test_values_are_those_that_psycopg_sends(url):
    """Of every type that the ledger has, and none of them is cut short."""
    given = {"a": 2**40, "b": "50 % of it: \u00e9", "c": {"k": [1, None]}, "d": True, "e": UUID(int=7), "f": None}
    types = {"a": BigInteger, "b": Text, "c": JSONB, "d": Boolean, "e": Uuid, "f": JSONB(none_as_null=True)}
    # SQLAlchemy casts all of them but booleans.
    asked = Compiled(select(*(cast(bindparam(name, type_=of), of).label(name) for name, of in types.items())))
    with psycopg.connect(url) as connection:
        for pid in (0, connection.info.backend_pid, connection.info.backend_pid):
            keep_prepared(connection, url, pid)
            assert Asked(connection, asked, given).row() == given
        with pytest.raises(psycopg.DataError, match="NUL"):
            Asked(connection, asked, {**given, "b": "a\0b"})
        with pytest.raises(KeyError):
            Asked(connection, asked, {})
