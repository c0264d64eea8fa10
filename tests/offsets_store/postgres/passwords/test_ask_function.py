"""The function that ``passwordFrom`` names."""

from __future__ import annotations

import subprocess
import sys
import traceback
import types

import pytest

from pgonce.offsets_store.errors import ConfigurationError, ConnectError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.passwords.ask_function import ask_function
from pgonce.offsets_store.postgres.passwords.login import Login
from pgonce.offsets_store.postgres.passwords.postgres_url import PostgresUrl

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
        ("empty", "returned an empty text"),
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
    """Whoever connects gets the error in words, with no psycopg error around it."""
    with pytest.raises(ConnectError, match="PASSWORD_SOURCE_FAILED"):
        connect(PostgresUrl("host=127.0.0.1 port=9", "company_passwords:nothing"))
