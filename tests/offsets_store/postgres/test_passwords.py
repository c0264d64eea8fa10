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

from pgonce.offsets_store.errors import ConfigurationError, ConnectError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.passwords import ask_function
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
