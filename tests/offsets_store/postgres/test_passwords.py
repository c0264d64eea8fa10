"""The function that ``passwordFrom`` names."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import traceback
import types
import uuid

import pytest
from free_ports import free_port
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.rotating_password import FILE, Rotation, who_asked

from pgonce.offsets_store.errors import ConfigurationError, ConnectError
from pgonce.offsets_store.postgres.connect import checked_out, connect, engine_for
from pgonce.offsets_store.postgres.passwords import ask_function, hosts_of
from pgonce.offsets_store.postgres.postgres_url import Login, PostgresUrl

LOGIN = Login("db.example", 5432, "streamer", "shop")


def raising(login):
    """Fail with secrets in the words and in the frame."""
    token = "zq7frame"
    raise RuntimeError(
        f"POST https://u:zq7user@sts.example.com/t?sig=zq7query failed: token={token}, eyJzq7A1b2C3d4E5f6"
    )


def plain(_):
    """Fail with a secret that looks like any word."""
    raise ValueError("zq7plain")


def commanding(login):
    """Run a command, as docs/security.md shows, that fails with secrets in its words and in what it prints."""
    program = "import sys; print('zq7out'); sys.exit('zq7err')"
    subprocess.run([sys.executable, "-c", program, "zq7argument"], check=True, capture_output=True, text=True)


def exiting(login):
    """Try to end the process."""
    sys.exit("zq7exit1234567890abc")


@pytest.fixture
def company(monkeypatch):
    """A module of the user's own."""
    module = types.ModuleType("company_passwords")
    module.raising, module.exiting, module.plain, module.commanding = raising, exiting, plain, commanding
    module.nothing, module.empty = lambda _: None, lambda _: " \n"
    module.bytes, module.nul = lambda _: b"zq7", lambda _: "zq7\0"
    # As os.environb or a file gives them that was read with surrogateescape.
    module.surrogate = lambda _: b"zq7\xff".decode(errors="surrogateescape")
    module.sound = lambda login: f"{login.user}@{login.host}"
    module.wrong_arguments = lambda: "zq7"
    module.constant = "zq7constant"
    monkeypatch.setitem(sys.modules, "company_passwords", module)
    return module


def test_a_function_is_called_with_the_login(company):
    """It learns who logs in where, and what it returns is the password, to the letter."""
    assert ask_function("company_passwords:sound", LOGIN, was_let_in=False) == "streamer@db.example"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raising", "raised RuntimeError, so there"),
        ("plain", "raised ValueError, so there"),
        ("commanding", "raised CalledProcessError, so there"),
        ("exiting", "raised SystemExit"),
        ("nothing", "returned nothing"),
        ("empty", "returned an empty string"),
        ("bytes", "returned a bytes, not a str"),
        ("nul", "a NUL"),
        ("surrogate", "not valid Unicode"),
        ("wrong_arguments", "raised TypeError"),
    ],
)
def test_a_function_that_gives_no_password_is_an_error_in_words(company, name, said):
    """The error says what it did instead, and shows neither what it returned nor its frames."""
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED") as failed:
        ask_function(f"company_passwords:{name}", LOGIN, was_let_in=False)
    assert said in str(failed.value)
    assert "zq7" not in "".join(traceback.format_exception(failed.value))
    assert failed.value.__context__ is None
    assert not failed.value.may_pass


def test_a_failure_may_pass_in_a_process_that_was_let_in_before(company):
    """While a token service is away, a running stream waits for it as it waits for Postgres."""
    with pytest.raises(ConnectError) as failed:
        ask_function("company_passwords:nothing", LOGIN, was_let_in=True)
    assert failed.value.may_pass


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_package_zq:f", "there is no module no_such_package_zq"),
        ("json.no_such_part:f", "there is no module json.no_such_part"),
        ("json:no_such_function", "module json has no function no_such_function"),
        ("company_passwords:constant", "module company_passwords has no function constant"),
        ("broken_module_zq:f", "cannot be imported: it raised ValueError"),
        ("needy_module_zq:f", "module needy_module_zq needs absent_zq"),
    ],
)
def test_a_function_that_is_not_there_is_an_error_for_good(company, tmp_path, monkeypatch, name, said):
    """The error says what is missing in this process and where it has to be; trying again would not help."""
    (tmp_path / "broken_module_zq.py").write_text("raise ValueError('password=zq7')")
    (tmp_path / "needy_module_zq.py").write_text("import absent_zq")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="PASSWORD_SOURCE_MISSING") as missing:
        ask_function(name, LOGIN, was_let_in=True)
    assert said in str(missing.value)
    assert "zq7" not in "".join(traceback.format_exception(missing.value))
    assert missing.value.__context__ is None


def test_errors_of_the_function_come_out_of_connecting_as_they_are(company):
    """The caller gets our error, with no psycopg error around it."""
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED"):
        connect(PostgresUrl("host=127.0.0.1 port=9", "company_passwords:nothing"))


def test_nothing_is_logged_at_debug_while_a_function_is_asked(company, caplog):
    """Libraries of clouds log tokens there: by any thread, and by loggers that come to be meanwhile."""
    caplog.set_level(logging.DEBUG)

    def say() -> None:
        logging.getLogger(f"zq.made.{uuid.uuid4()}").debug("zq7 is the token")

    def speaking(login):
        logging.getLogger("zq.library").debug("zq7 is the token")
        say()
        elsewhere = threading.Thread(target=say)
        elsewhere.start()
        elsewhere.join()
        # Another connection is made meanwhile.
        ask_function("company_passwords:sound", login, was_let_in=False)
        say()
        logging.getLogger("zq.library").info("a word")
        return "zq7"

    company.speaking = speaking
    logging.getLogger("zq.library").debug("before")
    assert ask_function("company_passwords:speaking", LOGIN, was_let_in=False) == "zq7"
    with pytest.raises(ConnectError):
        ask_function("company_passwords:raising", LOGIN, was_let_in=False)
    logging.getLogger("zq.library").debug("after")
    assert [text for text in caplog.messages if text.startswith(("zq7", "before", "a word", "after"))] == [
        "before",
        "a word",
        "after",
    ]


def test_what_was_disabled_stays_so(company, caplog):
    """A program that logs no INFO either logs none afterwards."""
    caplog.set_level(logging.DEBUG)
    logging.disable(logging.INFO)
    try:
        ask_function("company_passwords:sound", LOGIN, was_let_in=False)
        assert logging.root.manager.disable == logging.INFO
    finally:
        logging.disable(logging.NOTSET)


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
    made = Rotation(url, login.user, file)
    made.change()
    yield made
    made.stop()


@pytest.fixture
def file(rotation, tmp_path):
    """Where the password is that counts now."""
    return tmp_path / "password"


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


@pytest.mark.parametrize("was_let_in", [False, True])
def test_a_login_that_is_refused_twice_is_an_error(login, rotation, file, caplog, was_let_in):
    """
    It is not tried for ever, and neither the error nor a log shows a password.

    It may pass once the process has been let in: a commit waits for a token service that is behind.
    """
    caplog.set_level(logging.DEBUG)
    url = PostgresUrl(make_conninfo(**silent(login.url)), ASKED)
    if was_let_in:
        connect(url).close()
    file.write_text("zq7wrong")
    with pytest.raises(ConnectError, match="CONNECT_REFUSED") as refused:
        connect(url)
    assert [row[5] for row in who_asked(file)][was_let_in:] == ["False", "True"]
    assert "zq7" not in f"{refused.value}{caplog.text}"
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__
    assert refused.value.may_pass is was_let_in


def test_each_of_several_hosts_is_asked_for_by_its_own_name(login, rotation, file):
    """A token may be for one host only: the function learns which host is tried, and in which order."""
    where, nobody = silent(login.url), str(free_port())
    several = {**where, "host": f"localhost,{where['host']}", "port": f"{nobody},{where['port']}"}
    connect(PostgresUrl(make_conninfo(**several), ASKED)).close()
    tried = [row[1:3] for row in who_asked(file)]
    assert tried == [("localhost", nobody), (where["host"], where["port"])]


@pytest.mark.parametrize(
    ("given", "done", "says"),
    [
        ({"dbname": "pgonce_test_is_not_there"}, "", "pgonce_test_is_not_there"),
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
    with pytest.raises(ConnectError, match="CONNECT_FAILED"):
        connect(PostgresUrl(make_conninfo(**{**silent(login.url), **through}), ASKED))
    assert [row[5] for row in who_asked(file)] == ["False"]


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
