"""A connection whose password is asked for at that moment."""

from __future__ import annotations

import logging
import socket

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.rotating_password import FILE, Rotation, who_asked

from pgonce.offsets_store.errors import ConnectError
from pgonce.offsets_store.postgres.connect import checked_out, connect, engine_for
from pgonce.offsets_store.postgres.passwords import hosts_of, resolved
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl

ASKED = "support.rotating_password:asked"
KEPT = "support.rotating_password:kept"


def silent(url: str) -> dict[str, str]:
    """The parameters of a connection string, without its password."""
    return {name: value for name, value in conninfo_to_dict(url).items() if name != "password"}


@pytest.fixture
def rotation(login, url, tmp_path, monkeypatch):
    """The login's role, whose password changes when the test says so."""
    file = tmp_path / "password"
    monkeypatch.setenv(FILE, str(file))
    made = Rotation(url, login.user, file, 3600)
    made.change()
    yield made
    made.stop()


@pytest.fixture
def file(rotation, tmp_path):
    """Where the password is that counts now."""
    return tmp_path / "password"


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_source_is_asked_for_each_new_connection(login, rotation, file):
    """A password that has changed since is no hindrance, because nobody remembers the old one."""
    url = PostgresUrl(make_conninfo(**silent(login.url)), ASKED)
    for _ in range(3):
        rotation.change()
        with connect(url, autocommit=True, connect_timeout=7) as connection:
            assert connection.autocommit
            assert connection.execute("SELECT current_user").fetchone() == (login.user,)
    where = silent(login.url)
    assert [row[1:] for row in who_asked(file)] == [
        (where["host"], where["port"], login.user, where["dbname"], "False")
    ] * 3


def test_connections_of_the_pool_are_asked_for_too_and_open_ones_are_not(login, rotation, file):
    """The pool asks when it connects; a session that is open goes on, however old its password is."""
    url = PostgresUrl(make_conninfo(**silent(login.url)), ASKED)
    with checked_out(url) as first:
        rotation.change()
        with checked_out(url) as second:
            assert first.exec_driver_sql("SELECT 1").scalar() == second.exec_driver_sql("SELECT 1").scalar() == 1
    rotation.change()
    with checked_out(url) as again:
        assert again.exec_driver_sql("SELECT 1").scalar() == 1
    engine_for(url).dispose()
    assert len(who_asked(file)) == 2


def test_a_login_that_is_refused_is_tried_once_more_with_a_password_asked_for_again(login, rotation, file):
    """A token that expired on its way costs a second try, in which the function is told that the first was refused."""
    with connect(PostgresUrl(make_conninfo(**silent(login.url)), KEPT)):
        pass
    assert [row[5] for row in who_asked(file)] == ["False", "True"]


def test_a_login_that_is_refused_twice_is_an_error(login, rotation, file, caplog):
    """It is not tried for ever, the error says that two were refused, and neither the error nor a log shows one."""
    caplog.set_level(logging.DEBUG)
    url = PostgresUrl(make_conninfo(**silent(login.url)), ASKED)
    file.write_text("zq7wrong")
    with pytest.raises(ConnectError, match="CONNECT_REFUSED.*called a second time") as refused:
        connect(url)
    assert [row[5] for row in who_asked(file)] == ["False", "True"]
    assert "zq7" not in f"{refused.value}{caplog.text}"
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    assert not refused.value.may_pass


def test_a_refused_login_may_pass_once_the_process_has_been_let_in(login, rotation, file):
    """A commit waits for a token service that is behind, as it waits for a password that is being rotated."""
    url = PostgresUrl(make_conninfo(**silent(login.url)), ASKED)
    connect(url).close()
    file.write_text("zq7wrong")
    with pytest.raises(ConnectError, match="CONNECT_REFUSED") as refused:
        connect(url)
    assert refused.value.may_pass


def test_each_of_several_hosts_is_asked_for_by_its_own_name(login, rotation, file):
    """A token may be for one host only: the function learns which host is tried, and in which order."""
    where, nobody = silent(login.url), str(free_port())
    several = {**where, "host": f"localhost,{where['host']}", "port": f"{nobody},{where['port']}"}
    connect(PostgresUrl(make_conninfo(**several), ASKED)).close()
    tried = [row[1:3] for row in who_asked(file)]
    assert tried == [("localhost", nobody), (where["host"], where["port"])]


def test_a_host_that_is_not_the_wanted_kind_is_passed_over(login, rotation, file):
    """target_session_attrs goes on to the next host, and no host's password counts as refused."""
    where = silent(login.url)
    several = {**where, "host": f"{where['host']},{where['host']}", "port": where["port"]}
    for wanted in ("standby", "read-only"):
        with pytest.raises(ConnectError, match="hot standby|read-only"):
            connect(PostgresUrl(make_conninfo(**several, target_session_attrs=wanted), ASKED))
    assert [row[5] for row in who_asked(file)] == ["False"] * 4
    prefers = {**several, "target_session_attrs": "prefer-standby"}
    connect(PostgresUrl(make_conninfo(**prefers), ASKED)).close()
    assert [row[5] for row in who_asked(file)] == ["False"] * 7


@pytest.mark.parametrize(
    ("given", "done", "says"),
    [
        ({"dbname": "pgonce_test_is_not_there"}, "", "does not exist"),
        ({"options": "-cno_such_setting=1"}, "", "no_such_setting"),
        ({}, "REVOKE CONNECT ON DATABASE {database} FROM public", "permission denied for database"),
        ({}, "ALTER ROLE {role} CONNECTION LIMIT 0", "too many connections"),
        ({}, "ALTER ROLE {role} NOLOGIN", "not permitted to log in"),
    ],
)
def test_a_password_that_was_taken_is_not_asked_for_again(given, done, says, login, rotation, file, admin):
    """That the database is missing, or a setting wrong, or the role kept out, says nothing of the password."""
    if done:
        admin.execute(done.format(database=admin.info.dbname, role=login.user).encode())
    url = PostgresUrl(make_conninfo(**{**silent(login.url), **given}), ASKED)
    with pytest.raises(ConnectError, match=says):
        connect(url)
    assert [row[5] for row in who_asked(file)] == ["False"]


def test_a_line_that_breaks_after_the_password_is_no_refusal(login, rotation, file, proxy):
    """A server that cannot be heard any more has not refused anything."""
    proxy.before_message = lambda kind, _: proxy.cut_all() if kind == b"p" else None
    through = {"port": str(proxy.port), "sslmode": "disable", "gssencmode": "disable"}
    with pytest.raises(ConnectError, match="CONNECT_FAILED.*closed the connection"):
        connect(PostgresUrl(make_conninfo(**{**silent(login.url), **through}), ASKED))
    assert [row[5] for row in who_asked(file)] == ["False"]


def test_when_no_host_lets_us_in_all_are_named(login, rotation, file):
    """The error of several hosts says what each has said."""
    one, two = str(free_port()), str(free_port())
    several = {**silent(login.url), "host": "127.0.0.1,localhost", "port": f"{one},{two}"}
    with pytest.raises(ConnectError, match=f"(?s){one}.*{two}") as failed:
        connect(PostgresUrl(make_conninfo(**several), ASKED))
    assert failed.value.code == "CONNECT_FAILED"


def test_hosts_from_a_service_file_and_the_environment_are_asked_for(login, rotation, file, tmp_path, monkeypatch):
    """What url leaves to libpq's files and variables is known to the function all the same."""
    where = silent(login.url)
    services = tmp_path / "services.conf"
    services.write_text("[shop]\n" + "".join(f"{name}={where[name]}\n" for name in ("host", "port", "user", "dbname")))
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    connect(PostgresUrl("service=shop", ASKED)).close()
    monkeypatch.delenv("PGSERVICEFILE")
    for name, variable in {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}.items():
        monkeypatch.setenv(variable, where[name])
    monkeypatch.setenv("PGPASSWORD", "zq7 not this one")
    connect(PostgresUrl("", ASKED)).close()
    assert [row[1:5] for row in who_asked(file)] == [(where["host"], where["port"], login.user, where["dbname"])] * 2


def test_the_pgpass_and_service_files_are_read_anew_for_each_connection(login, rotation, tmp_path, monkeypatch):
    """Without any source, a password in a file may change while a job runs, because libpq reads the file each time."""
    where = silent(login.url)
    passfile, services = tmp_path / "pgpass", tmp_path / "services.conf"
    services.write_text("[shop]\n" + "".join(f"{name}={where[name]}\n" for name in ("host", "port", "user", "dbname")))
    for _ in range(3):
        password = rotation.change()
        passfile.write_text(f"*:*:*:{login.user}:{password}\n")
        passfile.chmod(0o600)
        connect(make_conninfo(passfile=str(passfile), **where)).close()
    monkeypatch.setenv("PGSERVICEFILE", str(services))
    url = make_conninfo(service="shop", passfile=str(passfile))
    connect(url).close()
    services.write_text(services.read_text().replace(f"user={login.user}", "user=zq7_nobody"))
    with pytest.raises(ConnectError, match="zq7_nobody|no password supplied"):
        connect(url)
    services.write_text(services.read_text().replace("user=zq7_nobody", f"user={login.user}"))
    connect(url).close()


@pytest.mark.parametrize(
    ("given", "tried"),
    [
        ({"host": "a,b", "port": "1"}, [("a", 1), ("b", 1)]),
        ({"host": "a,b", "port": "1,"}, [("a", 1), ("b", 5432)]),
        ({"host": "a,b"}, [("a", 5432), ("b", 5432)]),
        ({"hostaddr": "127.0.0.1,127.0.0.2", "port": "1,2"}, [("127.0.0.1", 1), ("127.0.0.2", 2)]),
        ({"host": "a,b", "hostaddr": "127.0.0.1,127.0.0.2", "port": "7"}, [("a", 7), ("b", 7)]),
        ({"host": "/tmp"}, [("/tmp", 5432)]),
        ({}, [("", 5432)]),
        ({"host": "a,b", "target_session_attrs": "prefer-standby"}, [("a", 5432), ("b", 5432)] * 2),
    ],
)
def test_the_hosts_are_those_that_libpq_would_try(given, tried):
    """Names, addresses and ports are put together as libpq's manual says."""
    assert [(login.host, login.port) for login, _ in hosts_of(given)] == tried


def test_hosts_come_in_another_order_each_time_where_that_is_asked_for():
    """load_balance_hosts=random is honoured."""
    given = {"host": ",".join("abcdefgh"), "load_balance_hosts": "random"}
    orders = {tuple(login.host for login, _ in hosts_of(given)) for _ in range(20)}
    assert len(orders) > 1
    assert all(sorted(order) == list("abcdefgh") for order in orders)


@pytest.mark.parametrize(
    "given", [{"host": "a,b", "port": "1,2,3"}, {"service": "no_such_service_zq7"}, {"host": "a", "port": "one"}]
)
def test_what_libpq_would_refuse_is_refused(given):
    """Reading the hosts finds what libpq itself objects to, in its words."""
    with pytest.raises(psycopg.OperationalError, match="match|service|invalid port"):
        list(hosts_of(given))


def test_reading_the_hosts_connects_to_nobody_and_shows_no_password():
    """What libpq would use is read without a packet, and without secrets."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.3)
        port = str(listening.getsockname()[1])
        read = resolved({"host": "127.0.0.1", "port": port, "password": "zq7", "sslpassword": "zq7"})
        with pytest.raises(TimeoutError):
            listening.accept()
    assert read["port"] == port
    assert "zq7" not in str(read)
