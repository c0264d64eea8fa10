"""
Which Postgres do the tests talk to, and which database?

Runs in: pytest. Invariant: every test has a database of its own, and nobody's data is touched: databases are
named ``pgonce_test_...`` and dropped. The server is `PGONCE_TEST_URL`'s (a superuser's URI or key=value
string), else one in Docker, if an engine answers, else the embedded one; `PGONCE_TEST_POSTGRES=14` to `18`
chooses the major of the last two.
"""

from __future__ import annotations

import os
import secrets
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from embedded_postgres import EmbeddedPostgres
from fix_no_skips import unavailable
from maven import MissingTool
from postgres_binaries import DEFAULT_MAJOR, bin_dir
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

_TEMPLATE = f"pgonce_test_template_{os.getpid()}"
_SERVER_KEY = pytest.StashKey[str]()


@dataclass(frozen=True)
class PostgresServer:
    """A server and the ways to it: libpq parameters of a superuser, the quick way and over TCP."""

    kind: str
    quick: dict[str, Any]
    tcp: dict[str, Any]
    embedded: EmbeddedPostgres | None = None

    def url(self, database: str, **parameters: Any) -> str:
        """URI of a database by the quick way: the Unix socket, where there is one."""
        return uri_of({**self.quick, "dbname": database, **parameters})

    def tcp_url(self, database: str, **parameters: Any) -> str:
        """URI of a database over TCP."""
        return uri_of({**self.tcp, "dbname": database, **parameters})

    def execute(self, query: sql.Composed) -> None:
        """Run a statement of administration (CREATE DATABASE and the like)."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(query)


@dataclass(frozen=True)
class Login:
    """A role that must give its password, on the test's own database; it owns nothing yet."""

    user: str
    password: str
    url: str


def uri_of(parameters: dict[str, Any]) -> str:
    """Write libpq parameters as a URI."""
    rest = dict(parameters)
    user, password = rest.pop("user", None), rest.pop("password", None)
    host, port, database = str(rest.pop("host", "")), rest.pop("port", None), rest.pop("dbname", "")
    login = quote(user, "") + (f":{quote(password, '')}" if password else "") + "@" if user else ""
    where = f":{port}" if port else ""
    if host.startswith("/"):
        # A socket's directory has no place among a URI's hosts.
        rest, host, where = {"host": host, **({"port": port} if port else {}), **rest}, "", ""
    query = f"?{urlencode(rest, quote_via=quote, safe='')}" if rest else ""
    return f"postgresql://{login}{host}{where}/{quote(str(database), '')}{query}"


def url_with(url: str, **parameters: Any) -> str:
    """Add libpq parameters to a connection string, whether or not it has any yet."""
    return uri_of({**conninfo_to_dict(url), **parameters})


@pytest.fixture(scope="session")
def postgres_server(pytestconfig: pytest.Config) -> Iterator[PostgresServer]:
    """The session's server, with a template database whose encoding and collation never vary."""
    with ExitStack() as stack:
        server = _given() or _in_docker(stack) or _embedded(stack)
        template = sql.Identifier(_TEMPLATE)
        with psycopg.connect(server.url("postgres"), autocommit=True) as connection:
            version = connection.execute("SHOW server_version").fetchone()
            pytestconfig.stash[_SERVER_KEY] = f"{server.kind}, {version[0] if version else '?'}"
            # Only what is put here comes to the process that prints the summary, when tests run in several.
            getattr(pytestconfig, "workeroutput", {})["postgres"] = pytestconfig.stash[_SERVER_KEY]
        how = "CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'"
        server.execute(sql.SQL(how).format(template))
        yield server
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(template))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """One of several test processes ends: keep what it says of its server."""
    if "postgres" in getattr(node, "workeroutput", {}):
        node.config.stash[_SERVER_KEY] = node.workeroutput["postgres"]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say which Postgres it was: what passed there says little about others."""
    if server := config.stash.get(_SERVER_KEY, None):
        terminalreporter.line(f"Postgres: {server}")


@pytest.fixture
def database(postgres_server: PostgresServer) -> Iterator[str]:
    """Name of a fresh database."""
    name = f"pgonce_test_{os.getpid()}_{secrets.token_hex(4)}"
    clone = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(_TEMPLATE))
    postgres_server.execute(clone)
    yield name
    postgres_server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def url(postgres_server: PostgresServer, database: str) -> str:
    """Libpq URI of the test's database, as a superuser."""
    return postgres_server.url(database)


@pytest.fixture
def tcp_url(postgres_server: PostgresServer, database: str) -> str:
    """The same database over TCP."""
    return postgres_server.tcp_url(database)


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection]:
    """A connection that may do anything."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def observer(url: str) -> Iterator[psycopg.Connection]:
    """A connection that only looks: it cannot write, and holds no transaction open."""
    with psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=on") as connection:
        yield connection


@pytest.fixture
def login(postgres_server: PostgresServer, database: str) -> Iterator[Login]:
    """A role without privileges whose password the server checks (scram-sha-256)."""
    user, password = f"pgonce_test_{secrets.token_hex(4)}", f"s3cret/{secrets.token_hex(8)}@:"
    role = sql.Identifier(user)
    create = "SET password_encryption = 'scram-sha-256'; CREATE ROLE {} LOGIN PASSWORD {}"
    postgres_server.execute(sql.SQL(create).format(role, sql.Literal(password)))
    if postgres_server.embedded:
        postgres_server.embedded.add_hba(f"host all {user} all scram-sha-256")
    found = Login(user, password, postgres_server.tcp_url(database, user=user, password=password))
    try:
        _refuse_wrong_password(postgres_server.tcp_url(database, user=user, password="wrong"))
        yield found
    finally:
        with psycopg.connect(postgres_server.url(database), autocommit=True) as connection:
            # Sessions of the role would keep what is dropped here locked.
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [user])
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))


def _refuse_wrong_password(wrong: str) -> None:
    try:
        psycopg.connect(wrong).close()
    except psycopg.OperationalError:
        return
    unavailable("The server of PGONCE_TEST_URL trusts everybody: it must ask for passwords over TCP.")


def _given() -> PostgresServer | None:
    given = os.environ.get("PGONCE_TEST_URL")
    if not given:
        return None
    quick = conninfo_to_dict(given)
    tcp = {**quick, "host": "127.0.0.1"} if str(quick.get("host", "/")).startswith("/") else quick
    return PostgresServer("PGONCE_TEST_URL", quick, tcp)


def _major() -> int:
    return int(os.environ.get("PGONCE_TEST_POSTGRES", DEFAULT_MAJOR))


def _in_docker(stack: ExitStack) -> PostgresServer | None:
    if not (os.environ.get("DOCKER_HOST") or Path("/var/run/docker.sock").exists()):
        return None
    with warnings.catch_warnings():
        # The import path that works in every version asked for warns in the newest ones.
        warnings.simplefilter("ignore")
        import docker
        from testcontainers.postgres import PostgresContainer

        try:
            docker.from_env(timeout=5).ping()
            container = PostgresContainer(
                f"postgres:{_major()}", username="postgres", password="postgres", dbname="postgres"
            )
            container.with_command("postgres -c fsync=off -c full_page_writes=off -c max_connections=200")
            stack.enter_context(container)
            parameters = conninfo_to_dict(container.get_connection_url(driver=None))
            psycopg.connect(uri_of({**parameters, "connect_timeout": 30})).close()
        except docker.errors.DockerException:
            # No engine answers, or it cannot get the image; the summary says which server it was.
            return None
        except (OSError, RuntimeError, psycopg.OperationalError) as error:
            reason = " ".join(str(error).split())
            unavailable(
                f"Docker answers, but a Postgres in a container of it cannot be reached ({reason}): unset DOCKER_HOST "
                "or stop the engine, and the tests take the embedded server; or name one in PGONCE_TEST_URL."
            )
    return PostgresServer("Docker", parameters, parameters)


def _embedded(stack: ExitStack) -> PostgresServer:
    try:
        server = stack.enter_context(EmbeddedPostgres(bin_dir=bin_dir(_major())))
    except MissingTool as missing:
        unavailable(str(missing))
    quick, tcp = conninfo_to_dict(server.uri()), conninfo_to_dict(server.tcp_uri())
    return PostgresServer("embedded", quick, tcp, embedded=server)
