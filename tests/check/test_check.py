"""
What the preflight finds out on a real server, and what it leaves there.

Covers: offsets_store.ledger.privileges, pgonce.check.answers, pgonce.check.check, pgonce.check.role.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from support.fixtures.postgres import url_with

from pgonce.check.answers import Holds, Question
from pgonce.check.check import check_server, product
from pgonce.offsets_store.errors import ConnectError, PgonceError
from pgonce.offsets_store.ledger.migrations import ensure_ledger, grants

# What a server of the tests may lack: it never loses power, and nobody follows it.
_OF_TESTS = {"disk", "standbys"}


def answers(url):
    """The findings, by name."""
    found = check_server(url)
    by_name = {finding.name: finding for finding in found}
    assert len(by_name) == len(found)
    return by_name


def not_holding(url):
    """The names of all that does not hold as it should, apart from what servers of the tests lack."""
    found = answers(url)
    return {name for name, finding in found.items() if finding.holds is not Holds.YES} - _OF_TESTS


def everything(admin):
    """All schemas, relations, types, functions and roles of the database, and the locks that outlast a transaction."""
    return [
        admin.execute(query).fetchall()
        for query in (
            # A session's first temporary table makes a schema, which stays for the next session.
            "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_t%temp%' ORDER BY 1",
            "SELECT relname FROM pg_class WHERE relnamespace <> 'pg_toast'::regnamespace ORDER BY 1",
            "SELECT typname FROM pg_type ORDER BY 1",
            "SELECT proname FROM pg_proc ORDER BY 1",
            "SELECT rolname FROM pg_roles ORDER BY 1",
            "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'",
        )
    ]


@pytest.mark.parametrize("has_ledger", [False, True])
def test_an_ordinary_server_holds_and_is_left_as_it_was(has_ledger, url, admin):
    """Every promise holds, whether or not the ledger is there; and nothing is left behind."""
    if has_ledger:
        ensure_ledger(url)
    before = everything(admin)
    assert not_holding(url) == set()
    assert everything(admin) == before


def test_a_role_may_have_a_lock_timeout_of_its_own(url):
    """It is not taken for one that outlives its transaction."""
    assert not_holding(url_with(url, options="-clock_timeout=1s")) == set()


def test_settings_of_the_disk_are_looked_at(url, admin):
    """Fsync and full_page_writes count, as they are."""
    settings = [admin.execute(f"SHOW {name}").fetchone()[0] for name in ("fsync", "full_page_writes")]
    found = answers(url)["disk"]
    assert found.holds is (Holds.YES if settings == ["on", "on"] else Holds.NO)
    if settings[0] == "off":
        assert "loses power" in found.says


@pytest.mark.parametrize(
    ("setting", "name", "holds", "says"),
    [
        ("synchronous_commit=off", "synchronous-commit", Holds.NO, "before the rows are on disk"),
        ("session_replication_role=replica", "deferred-key", Holds.NO, "not checked at all"),
        ("default_transaction_read_only=on", "primary", Holds.NO, "default_transaction_read_only is on"),
    ],
)
def test_a_setting_that_takes_a_promise_away_is_named(setting, name, holds, says, url):
    """The answer says what is set, and the others are not changed by it."""
    changed = url_with(url, options=f"-c{setting}")
    found = answers(changed)
    assert (found[name].holds, says in found[name].says) == (holds, True)
    assert {other for other, finding in found.items() if finding.holds is Holds.NO} - _OF_TESTS <= {name}


class TestRole:
    def test_a_role_that_may_create_no_schema_is_told_what_to_run(self, login, admin):
        admin.execute(f"REVOKE TEMPORARY ON DATABASE {admin.info.dbname} FROM public")
        found = answers(login.url)
        assert {name for name, finding in found.items() if finding.holds is Holds.NO} - _OF_TESTS >= {
            "ledger",
            "temporary-tables",
        }
        assert "pgonce init --role" in found["ledger"].remedy

    def test_with_the_grants_of_init(self, login, url, admin):
        """What `pgonce init --role` grants is enough; one privilege less is named."""
        ensure_ledger(url)
        admin.execute("; ".join(grants(login.user)).encode())
        assert not_holding(login.url) == set()
        admin.execute(sql.SQL("REVOKE UPDATE ON pgonce.writers FROM {}").format(sql.Identifier(login.user)))
        found = answers(login.url)["ledger"]
        assert (found.holds, found.says) == (Holds.NO, "the role lacks UPDATE on pgonce.writers")

    def test_a_ledger_of_another_version(self, url, admin):
        """A ledger that newer code has changed is refused here, too."""
        ensure_ledger(url)
        admin.execute("INSERT INTO pgonce.schema_version (version, least_reader_version) VALUES (1000, 1000)")
        found = answers(url)["ledger"]
        assert (found.holds, "1000" in found.says) == (Holds.NO, True)


class TestPooler:
    def test_every_promise_holds_in_transaction_mode(self, pooled_url):
        """Everything holds behind it, and it is seen."""
        assert not_holding(pooled_url) == set()
        assert "keeps each transaction in one session" in answers(pooled_url)["pooler"].says

    def test_statement_mode_is_the_only_answer(self, pgbouncer, database):
        """Nothing else can be asked, and the answer says which mode is needed."""
        (found,) = check_server(pgbouncer("statement").url(database))
        assert (found.name, found.holds) == ("pooler", Holds.NO)
        assert "pool_mode" in found.remedy


def test_a_server_that_is_away_is_an_error(url):
    """A preflight that could not be made is no answer about promises."""
    with pytest.raises(PgonceError, match="CONNECT_REFUSED|CONNECT_FAILED"):
        check_server(url_with(url, dbname="pgonce_test_is_not_there"))


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (
            "CockroachDB CCL v24.2.0 (x86_64-pc-linux-gnu, built 2024/08/12, go1.22.5 X:nocoverageredesign)",
            "CockroachDB",
        ),
        ("PostgreSQL 15.2-YB-2.25.2.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 17.0.6", "YugabyteDB"),
        ("PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc (GCC) 3.4.2, Redshift 1.0.12103", "Redshift"),
        ("PostgreSQL 18.4 on x86_64-pc-linux-gnu, compiled by gcc (GCC) 14.2.1 20250110, 64-bit", None),
    ],
)
def test_a_database_that_only_speaks_the_protocol_is_named(version, name):
    """Such a server calls itself a Postgres to its clients, and says in the same text what it is."""
    assert product(version) == name


def test_a_database_that_only_speaks_the_protocol_does_not_hold(url, monkeypatch):
    """Its name is in the answer, and the way out is a Postgres."""
    monkeypatch.setattr(
        "pgonce.check.check.product", lambda version: "CockroachDB" if "PostgreSQL" in version else None
    )
    found = answers(url)["server"]
    assert (found.holds, "CockroachDB" in found.says) == (Holds.NO, True)
    assert "Postgres 14 to 19" in found.remedy


def test_a_session_that_ends_is_an_error(url):
    """It is said at which question, because a server may end the session each time that it is asked for this."""

    def end(connection):
        with psycopg.connect(url, autocommit=True) as other:
            other.execute("SELECT pg_terminate_backend(%s)", [connection.info.backend_pid])
        connection.execute("SELECT 1")

    with pytest.raises(ConnectError, match="CONNECT_FAILED.* keys"):
        check_server(url, Question("keys", "They stay.", end))
