"""Commands of ``pgonce`` that are told where the password comes from."""

from __future__ import annotations

import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.rotating_password import FILE, Rotation, who_asked
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.cli.terms import BY_FAMILY, exit_code
from pgonce.offsets_store.ledger.migrations import grants, migrate

ASKED = "support.rotating_password:asked"


@pytest.fixture
def where(login, url, admin, tmp_path, monkeypatch):
    """The url of a role whose password a function knows."""
    monkeypatch.setenv(FILE, str(tmp_path / "password"))
    migrate(admin)
    admin.execute("; ".join(grants(login.user)).encode())
    rotation = Rotation(url, login.user, tmp_path / "password")
    rotation.change()
    yield make_conninfo(**{name: value for name, value in conninfo_to_dict(login.url).items() if name != "password"})
    rotation.stop()


def test_each_family_of_errors_has_its_exit_code():
    """In the table of families, none stands behind a more general one, which would give its errors another code."""
    for family, code in BY_FAMILY:
        assert exit_code(family("CODE", "What.", "Data.", "Help.")) is code


def test_a_command_asks_for_the_password(where, tmp_path):
    """It asks the function that the environment names."""
    answer = CliRunner().invoke(app, ["status", "--url", where], env={"PGONCE_PASSWORD_FROM": ASKED})
    assert answer.exit_code == 0, answer.output
    assert "No streaming query" in answer.output
    assert who_asked(tmp_path / "password")


@pytest.mark.parametrize(
    ("source", "code", "said"),
    [
        ("zq", 2, "BAD_OPTION"),
        ("no_such_zq:f", 2, "PASSWORD_SOURCE_MISSING"),
        ("support.rotating_password:failing", 1, "PASSWORD_SOURCE_FAILED"),
    ],
)
def test_a_source_that_does_not_work_is_said_as_text(where, source, code, said):
    """With the exit code of a command line that cannot be read, or of a server that cannot be asked."""
    answer = CliRunner().invoke(app, ["status", "--url", where], env={"PGONCE_PASSWORD_FROM": source})
    assert (answer.exit_code, f"[{said}]" in answer.output) == (code, True), answer.output
