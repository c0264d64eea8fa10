"""The function that ``passwordFrom`` names."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import traceback
import types

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgonce.offsets_store.errors import ConfigurationError, ConnectError
from pgonce.offsets_store.postgres.connect import connect
from pgonce.offsets_store.postgres.passwords import ask_function, safe_words
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


JWT = "eyJ0eXAiOiJKV1QiLCJhbGciOiJSUzI1NiJ9.eyJvaWQiOiJ6cTcifQ.c2lnbmF0dXJlMTIz"


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {JWT}",
        f"got {JWT} from the server",
        "Authorization: Basic zq7",
        '{"client_secret": "zq7 with spaces", "grant": 1}',
        "client_secret=zq7&grant_type=client_credentials",
        "{'access_token': 'zq7'}",
        "the password is zq7",
        "PGPASSWORD=zq7 psql",
        "https://user:zq7@host/path",
        "https://host/path?X-Amz-Signature=zq7&X-Amz-Credential=zq7",
        "postgresql://u:zq7@h/d",
        "AKIAIOSFODNN7EXAMPLEzq7",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYzq7EXAMPLEKEY",
        "-----BEGIN PRIVATE KEY-----\nzq7\n-----END PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nzq7",
        "aws_session_token = zq7",
        "the vault said: token=two words and zq7",
        "password: 'it's zq7'",
    ],
)
def test_what_looks_like_a_secret_is_hidden(text):
    """By its name, by its place in an address or header, or because it looks like nothing else."""
    assert "zq7" not in safe_words(f"before {text}")
    assert JWT.rsplit(".", 1)[1] not in safe_words(text)
    assert safe_words(f"before {text}").startswith("before ")


def test_secrets_of_the_environment_are_hidden_wherever_they_stand(monkeypatch):
    """Values of variables whose names say that they are secret."""
    monkeypatch.setenv("COMPANY_API_KEY", "just-words")
    assert safe_words("key just-words and other-words") == "key *** and other-words"


@given(st.binary(min_size=24, max_size=200), st.sampled_from(["standard", "url", "hex"]))
def test_no_long_random_text_gets_through(data, form):
    """Whatever way 24 random bytes or more are written, at most a piece of them is shown."""
    encoded = {"standard": base64.b64encode, "url": base64.urlsafe_b64encode, "hex": lambda d: d.hex().encode()}[form](
        data
    )
    text = encoded.decode()
    # What is all letters or all digits by chance, or by choice, is a word or a number.
    if any(c.isdigit() for c in text) and any(c.isalpha() for c in text) and not text.startswith("/"):
        assert text not in safe_words(json.dumps({"message": f"x {text} y"}))
