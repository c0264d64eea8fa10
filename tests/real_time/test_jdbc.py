"""What executors are told of the connection: libpq's parameters in the words of Postgres's JDBC driver."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from support.fixtures.postgres import url_with

from pgonce import PgonceError, PostgresUrl
from pgonce.real_time import jdbc
from pgonce.real_time.jdbc import jdbc_url

OPTIONS = (
    "-c lock_timeout=30000 -c statement_timeout=0 -c idle_session_timeout=0 -c array_nulls=on "
    r"-c default_transaction_isolation=read\ committed "
    "-c tcp_user_timeout=60000 -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
)


class Told:
    """A connection that knows what it was told, without a server."""

    def __init__(self, url):
        given = conninfo_to_dict(url)
        self.info = SimpleNamespace(
            get_parameters=lambda: given, dbname="d", host="h", port=1, password="", server_version=180000
        )

    def execute(self, _):
        """What it is asked."""
        return SimpleNamespace(fetchone=lambda: ("UTC", "ISO, MDY"))


@pytest.fixture
def told(monkeypatch):
    """What is said for a connection string with these parameters, where no server is asked."""
    monkeypatch.setattr(jdbc, "connect", lambda url: nullcontext(Told(url)))
    return lambda parameters: jdbc_url(f"host=h port=1 dbname=d {parameters}", "run-1", 30).properties


def properties_of(url, **parameters):
    """What is said for a connection string with these parameters."""
    return jdbc_url(url_with(url, **parameters), "run-1", 30).properties


def test_host_port_and_database(tcp_url, database, postgres_server):
    """They are the URL, and the run is the session's name."""
    found = jdbc_url(tcp_url, "run-1", 30)
    assert found.url == f"jdbc:postgresql://127.0.0.1:{postgres_server.tcp['port']}/{database}"
    assert found.properties["ApplicationName"] == "pgonce run-1"
    assert found.properties["options"] == OPTIONS


def test_what_the_driver_has_under_another_name(tcp_url):
    """TLS, the session's options and the kind of server are translated."""
    found = properties_of(tcp_url, sslmode="disable", options="-c work_mem=8MB", target_session_attrs="read-write")
    assert found["sslmode"] == "disable"
    assert found["options"] == f"-c work_mem=8MB {OPTIONS}"
    assert found["targetServerType"] == "primary"


def test_a_root_certificate_is_verified_as_libpq_does(tmp_path, monkeypatch, told):
    """With sslmode=require, libpq verifies the server wherever it has a root certificate; the driver would not."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for parameters, mode in [
        ("sslmode=require", "require"),
        ("sslmode=require sslrootcert=/etc/root.crt", "verify-ca"),
        ("sslmode=verify-full sslrootcert=/etc/root.crt", "verify-full"),
    ]:
        assert told(parameters)["sslmode"] == mode
    (tmp_path / ".postgresql").mkdir()
    (tmp_path / ".postgresql/root.crt").write_text("")
    assert told("sslmode=require")["sslmode"] == "verify-ca"


def test_each_of_several_hosts_keeps_its_own_port(postgres_server, database):
    """Each keeps its own port."""
    port, user = postgres_server.tcp["port"], postgres_server.tcp["user"]
    url = f"host=127.0.0.1,127.0.0.1 port=1,{port} dbname={database} user={user}"
    assert jdbc_url(url, "run-1", 30).url == f"jdbc:postgresql://127.0.0.1:1,127.0.0.1:{port}/{database}"


def test_several_hosts_of_the_environment(postgres_server, database, monkeypatch):
    """Executors know the others too, for the time after a failover."""
    port, user = postgres_server.tcp["port"], postgres_server.tcp["user"]
    monkeypatch.setenv("PGHOST", "127.0.0.1,localhost")
    monkeypatch.setenv("PGPORT", str(port))
    found = jdbc_url(f"dbname={database} user={user}", "run-1", 30).url
    assert found == f"jdbc:postgresql://127.0.0.1:{port},localhost:{port}/{database}"


def test_encryption_and_waiting_for_ever(told):
    """The driver has all of it, under other names or in other words."""
    found = told("gssencmode=require sslnegotiation=direct connect_timeout=-1")
    assert (found["gssEncMode"], found["sslNegotiation"], found["connectTimeout"]) == ("require", "direct", "0")


def test_a_password_is_in_the_properties_alone(login):
    """Neither the URL nor the text of the object shows it, wherever libpq has it from."""
    found = jdbc_url(login.url, "run-1", 30)
    assert found.properties["password"] == login.password
    assert login.password not in found.url + repr(found)


def test_a_password_of_the_environment(login, tcp_url, monkeypatch):
    """What libpq finds on the driver is sent to the executors."""
    monkeypatch.setenv("PGPASSWORD", login.password)
    assert properties_of(tcp_url, user=login.user)["password"] == login.password


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ("target_session_attrs=any requirepeer=postgres", "requirepeer"),
        ("ssl_max_protocol_version=TLSv1.3", "ssl_max_protocol_version"),
        ("ssl_min_protocol_version=TLSv1.3", "ssl_min_protocol_version"),
        # The driver would look for a file that is called so.
        ("sslmode=verify-full sslrootcert=system", "sslrootcert=system"),
        # With both, libpq verifies the name and connects to the address; the driver would verify the address.
        ("hostaddr=127.0.0.1 sslmode=verify-full", "hostaddr"),
    ],
)
def test_what_the_driver_does_not_have_is_refused(told, parameters, why):
    """A parameter that it lacks, or would take for something else, is named."""
    with pytest.raises(PgonceError, match=f"BAD_URL.*{why}"):
        told(parameters)


def test_time_limits_of_a_transaction_are_lifted(tcp_url, postgres_server):
    """As in a commit: a flush may wait for a lock."""
    with psycopg.connect(tcp_url) as connection:
        has_them = connection.info.server_version >= 170000
    assert jdbc_url(tcp_url, "run-1", 30).session.get("transaction_timeout") == ("0" if has_them else None)


def test_the_oldest_tls_that_java_uses_may_be_named(told):
    """It is TLS 1.2, which is libpq's too."""
    assert told("ssl_min_protocol_version=TLSv1.2")


def test_dates_are_read_as_the_role_reads_them(tcp_url, admin, database):
    """The JDBC driver sets a style of its own; the order of day and month is the role's, or the database's."""
    admin.execute(f"ALTER DATABASE \"{database}\" SET DateStyle = 'German, DMY'")
    assert jdbc_url(tcp_url, "run-1", 30).session["DateStyle"] == "ISO, DMY"


def test_a_unix_socket_is_refused(url, postgres_server):
    """The JDBC driver reaches servers by host and port only."""
    if "host" in postgres_server.quick and not str(postgres_server.quick["host"]).startswith("/"):
        url = "host=/tmp"
    with pytest.raises(PgonceError, match=r"BAD_URL.*Unix socket|CONNECT"):
        jdbc_url(url, "run-1", 30)


def test_a_password_from_a_function_is_refused(tcp_url):
    """Executors cannot call Python."""
    with pytest.raises(PgonceError, match=r"BAD_URL.*passwordFrom"):
        jdbc_url(PostgresUrl(tcp_url, "module:function"), "run-1", 30)
