"""The command ``pgonce check``: its lines, its exit codes, and what it says of a table."""

from __future__ import annotations

import json

import pytest
from support.fixtures.postgres import url_with
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.cli.terms import ExitCode


@pytest.fixture
def command(url, monkeypatch):
    """Give the command, on the test's database."""
    monkeypatch.setenv("PGONCE_URL", url)
    return lambda *more: CliRunner().invoke(app, ["check", *more])


@pytest.fixture
def about(command):
    """What is said of a table: whether it may be written to, and why."""

    def ask(table):
        (found,) = (one for one in json.loads(command("--json", "--table", table).stdout) if one["name"] == "table")
        return found["holds"], found["says"]

    return ask


def is_for_tests(admin):
    """Whether the server is one that may lose what it has: then that is an answer, too."""
    return admin.execute("SHOW fsync").fetchone() == ("off",)


def test_for_people(command, admin):
    """A line of text for each promise; and the exit code says whether all of them hold."""
    shown = command()
    assert "holds          locks: an advisory lock keeps another session out" in shown.stdout
    assert shown.exit_code == (ExitCode.NOT_FIT if is_for_tests(admin) else ExitCode.OK)
    assert ("Not all promises would hold here: disk." in shown.stdout) == is_for_tests(admin)


def test_for_programs(command):
    """The JSON has the same, with stable keys."""
    found = json.loads(command("--json").stdout)
    assert all(set(one) == {"name", "promise", "holds", "says", "remedy"} for one in found)
    assert {one["holds"] for one in found} <= {"holds", "weaker", "does not hold", "not known"}


def test_what_does_not_hold_is_explained(url):
    """The promise that is lost, and the way out, stand below the line; the url may be given as it is."""
    shown = CliRunner().invoke(app, ["check", url_with(url, options="-csynchronous_commit=off")])
    assert shown.exit_code == ExitCode.NOT_FIT
    assert "What does not hold: A batch that Spark calls done is on disk." in shown.stdout
    assert "Help: Set it to on (or local)" in shown.stdout


class TestTable:
    @pytest.mark.parametrize(
        ("ddl", "holds", "says"),
        [
            ("CREATE TABLE t (id bigint PRIMARY KEY)", "holds", "public.t can be written to; its primary key is id"),
            ("CREATE TABLE t (id bigint GENERATED ALWAYS AS IDENTITY, x int)", "holds", "must not have the column id"),
            ("CREATE UNLOGGED TABLE t (id bigint)", "does not hold", "unlogged"),
            ("SELECT", "not known", "there is no table t yet"),
        ],
    )
    def test_it_is_judged_as_a_commit_would(self, ddl, holds, says, admin, about):
        """What a commit would refuse is refused in the same words; what it would write to holds."""
        admin.execute(ddl)
        found = about("t")
        assert (found[0], says in found[1]) == (holds, True), found

    def test_a_role_that_may_not_insert(self, admin, login):
        """The table is there, and the role lacks the privilege; a privilege on one column is enough to go on."""
        admin.execute("CREATE TABLE t (id bigint)")

        def said():
            found = CliRunner().invoke(app, ["check", login.url, "--json", "--table", "t"]).stdout
            return [one["holds"] for one in json.loads(found) if one["name"] == "table"]

        assert said() == ["does not hold"]
        admin.execute(f"GRANT INSERT (id) ON t TO {login.user}")
        assert said() == ["holds"]

    def test_row_level_security_is_said(self, admin, login):
        """For a role that policies hold for, each row has to pass."""
        admin.execute(
            f"CREATE TABLE t (id bigint); ALTER TABLE t ENABLE ROW LEVEL SECURITY; GRANT INSERT ON t TO {login.user}"
        )
        shown = CliRunner().invoke(app, ["check", login.url, "--table", "t"]).stdout
        assert "row-level security checks each row" in shown
