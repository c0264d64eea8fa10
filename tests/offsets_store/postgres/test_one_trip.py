"""Several statements in one round trip: their order, their answers, and which of them has failed."""

import psycopg
import pytest
from sqlalchemy import Text, bindparam, func, literal_column, select

from pgonce.offsets_store.postgres.connect import checked_out, driver_connection
from pgonce.offsets_store.postgres.one_trip import Asked, one_trip

ASKED = select(bindparam("given", type_=Text).label("said"), literal_column("pg_catalog.now()").label("at"))
FAILS = select((literal_column("1") / literal_column("0")).label("never"))


def test_each_statement_has_its_answer(url):
    """They run in the order in which they were sent, and each sees what those before it have done."""
    to_set = select(func.set_config("DateStyle", "German, DMY", True).label("style"))
    with checked_out(url) as connection:
        with one_trip(connection):
            style = Asked(connection, to_set, {})
            asked = Asked(connection, ASKED, {"given": "50 % of it"})
            assert not asked.is_answered
        assert style.row() == {"style": "German, DMY"}
        row = asked.row()
        assert row["said"] == "50 % of it"
        (now,) = driver_connection(connection).execute("SELECT extract(epoch FROM now())").fetchone()
        assert row["at"].timestamp() == pytest.approx(float(now))


def test_it_is_known_which_statement_has_failed(url):
    """Those before it are answered; it is not, nor are those after it."""
    asked = []

    def ask(connection):
        with one_trip(connection):
            for question, given in ((ASKED, {"given": "a"}), (FAILS, {}), (ASKED, {"given": "b"})):
                one = Asked(connection, question, given)
                asked.append(one)

    with checked_out(url) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            ask(connection)
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
