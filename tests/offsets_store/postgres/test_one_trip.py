"""
Several statements in one round trip: their order, their answers, which of them has failed, and which are prepared.

Covers: offsets_store.ledger.compiled.
"""

import logging
from dataclasses import replace
from uuid import UUID

import psycopg
import pytest
from psycopg import IsolationLevel
from psycopg.pq import TransactionStatus
from sqlalchemy import BigInteger, Boolean, Text, Uuid, bindparam, cast, func, literal_column, select
from sqlalchemy.dialects.postgresql import JSONB
from support.batches import make_batch
from support.committed_rows import appending, ids, settings

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.ledger.compiled import Compiled
from pgonce.offsets_store.postgres.connect import checked_out, driver_connection
from pgonce.offsets_store.postgres.one_trip import Statement, ask, keep_prepared, one_trip
from pgonce.offsets_store.verdict.decide import Verdict

pytestmark = pytest.mark.usefixtures("events")

ASKED = Compiled(select(bindparam("given", type_=Text).label("said"), literal_column("pg_catalog.now()").label("at")))
FAILS = Compiled(select((literal_column("1") / literal_column("0")).label("never")))


def test_each_statement_has_its_answer(url):
    """They run in the order in which they were sent, and each sees what those before it have done."""
    to_set = Compiled(select(func.set_config("DateStyle", "German, DMY", True).label("style")))
    with checked_out(url) as connection:
        driver = driver_connection(connection)
        with one_trip(driver):
            style = ask(driver, to_set)
            asked = ask(driver, ASKED, {"given": "50 % of it"})
            assert not asked.is_answered
        assert style.row() == {"style": "German, DMY"}
        row = asked.row()
        assert row["said"] == "50 % of it"
        (now,) = driver.execute("SELECT extract(epoch FROM now())").fetchone()
        assert row["at"].timestamp() == pytest.approx(float(now))


def test_it_is_known_which_statement_has_failed(url):
    """Those before it are answered; it is not, nor are those after it."""
    asked = []

    def ask_all(driver):
        with one_trip(driver):
            for question, given in ((ASKED, {"given": "a"}), (FAILS, {}), (ASKED, {"given": "b"})):
                one = ask(driver, question, given)
                asked.append(one)

    with checked_out(url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            ask_all(driver_connection(connection))
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
            first = ask(driver, ASKED, {"given": "a"})
            assert first.row()["said"] == "a"
            second = ask(driver, ASKED, {"given": "b"})
            assert not second.is_answered
        assert second.row() == {"said": "b", "at": first.row()["at"]}


def test_a_block_that_fails_sends_nothing(url):
    """Not even BEGIN; and what is asked afterwards is sent at once."""
    with checked_out(url) as connection:
        driver = driver_connection(connection)

        def fail():
            with one_trip(driver):
                ask(driver, ASKED, {"given": "a"})
                raise ValueError("made up")

        with pytest.raises(ValueError, match="made up"):
            fail()
        assert driver.info.transaction_status is TransactionStatus.IDLE
        assert ask(driver, ASKED, {"given": "a"}).row()["said"] == "a"
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
        found = ask(connection, asked).rows()
        assert connection.info.transaction_status is TransactionStatus.INTRANS
        connection.rollback()
        assert found == connection.execute(asked.text).fetchall()
        assert found == [("serializable", "on") if wanted else ("read committed", "off")]
    with psycopg.connect(url, autocommit=True) as connection:
        ask(connection, asked)
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
            assert ask(connection, asked, given).row() == given
        with pytest.raises(psycopg.DataError, match="NUL"):
            ask(connection, asked, {**given, "b": "a\0b"})
        with pytest.raises(KeyError):
            ask(connection, asked, {})


IN_THE_SESSION = "SELECT statement FROM pg_prepared_statements"
GONE = "DO $$ BEGIN DEALLOCATE ALL; END $$"


def kept(url):
    """What the session of this process's pool has prepared."""
    with checked_out(url) as connection:
        return [statement for (statement,) in driver_connection(connection).execute(IN_THE_SESSION)]


def test_a_session_keeps_what_is_asked_of_the_ledger(admin, url):
    """From its second commit on, once each, however many batches follow; and nothing of the target."""
    commit_batch(settings(url), make_batch(0), appending(0))
    for number in range(1, 4):
        commit_batch(settings(url), make_batch(number), appending(number))
        found = kept(url)
        assert any("FOR UPDATE OF writers" in statement for statement in found)
        assert any(statement.startswith("INSERT INTO pgonce.batches") for statement in found)
        assert not any("events (" in statement for statement in found)
    before = len(found)
    for number in range(4, 40):
        commit_batch(settings(url), make_batch(number), appending(number))
    assert len(kept(url)) <= before + 1
    assert ids(admin) == list(range(40))


@pytest.mark.parametrize("mode", ["transaction", "session"])
def test_behind_a_pooler_nothing_is_prepared(mode, admin, pgbouncer, database):
    """The process id that libpq knows is the pooler's own."""
    url = pgbouncer(mode).url(database)
    for number in range(3):
        commit_batch(settings(url), make_batch(number), appending(number))
    assert kept(url) == []
    assert ids(admin) == [0, 1, 2]


def test_a_pooler_that_seemed_to_be_none_costs_one_try_at_most(admin, pgbouncer, database):
    """A session in which something is thought to be prepared turns out to be another one."""
    url = pgbouncer().url(database)
    commit_batch(settings(url), make_batch(0), appending(0))
    with checked_out(url) as connection:
        driver = driver_connection(connection)
        keep_prepared(driver, url, driver.info.backend_pid)
    for number in range(1, 4):
        assert commit_batch(settings(url), make_batch(number), appending(number)) is Verdict.NEW
    assert ids(admin) == [0, 1, 2, 3]


@pytest.mark.parametrize("when", ["between batches", "in a batch"])
def test_what_sql_of_the_user_has_deallocated_costs_one_try(when, admin, url, caplog):
    """A function of the database may do that unseen; from then on nothing is prepared by this url."""
    url = f"{url}&application_name=another" if "?" in url else f"{url}?application_name=another"
    for number in range(2):
        commit_batch(settings(url), make_batch(number), appending(number))
    work = appending(2)
    if when == "between batches":
        with checked_out(url) as connection:
            driver_connection(connection).execute(GONE)
            driver_connection(connection).commit()
    else:

        def publish(connection, batch, stored):
            driver_connection(connection).execute(GONE)
            return appending(2).publish(connection, batch, stored)

        work = replace(work, publish=publish)
    with caplog.at_level(logging.WARNING, logger="pgonce"):
        assert commit_batch(settings(url), make_batch(2), work) is Verdict.NEW
        assert commit_batch(settings(url), make_batch(3), appending(3)) is Verdict.NEW
    assert caplog.text.count("trying again") == 1
    assert kept(url) == []
    assert ids(admin) == [0, 1, 2, 3]
