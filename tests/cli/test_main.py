"""
The command ``pgonce``: its answers, its exit codes, and what it must not say.

Covers: pgonce.cli.answers.output, pgonce.cli.terms.
"""

from __future__ import annotations

import json
import subprocess
import sys

import psycopg
import pytest
from support.ledger_history import KAFKA, publish, publish_job

from pgonce.cli.main import ExitCode
from pgonce.offsets_store.ledger.migrations import ensure_ledger, forget_ledger, init_sql


class TestInit:
    def test_the_ledger_is_created_once_and_found_afterwards(self, pgonce, observer):
        """The first run creates the ledger, the second finds it up to date."""
        assert "applied version 200" in pgonce("init").stdout
        assert "up to date already" in pgonce("init").stdout
        assert observer.execute("SELECT count(*) FROM pgonce.writers").fetchone() == (0,)

    @pytest.mark.parametrize("command", [["init"], ["init", "--role", "postgres"]])
    def test_what_it_makes_is_not_taken_for_a_restored_one(self, command, pgonce, url, caplog):
        """The next session looks whether the ledger comes from a dump."""
        pgonce(*command)
        forget_ledger(url)
        ensure_ledger(url)
        assert "restored" not in caplog.text

    def test_for_a_role_without_create(self, pgonce, login):
        """After init --role, a role that may create nothing in the database publishes and reads."""
        assert pgonce("init", "--role", login.user).exit_code == ExitCode.OK
        publish(login.url, 0, KAFKA)
        assert pgonce("status", "--url", login.url).exit_code == ExitCode.OK
        with psycopg.connect(login.url) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("CREATE SCHEMA mine")

    def test_for_a_role_that_is_not_there(self, pgonce, observer):
        """A misspelt role is an error, and no ledger is left behind."""
        failed = pgonce("init", "--role", "nobody_of_that_name")
        assert failed.exit_code == ExitCode.FAILED
        assert "nobody_of_that_name" in failed.stderr
        assert observer.execute("SELECT to_regnamespace('pgonce')").fetchone() == (None,)

    def test_sql_needs_no_server(self, pgonce):
        """--sql prints the DDL and the grants, and connects nowhere."""
        answer = pgonce("init", "--sql", "--role", "streaming", "--url", "postgresql://127.0.0.1:1/nowhere")
        assert (answer.exit_code, answer.stdout) == (0, init_sql("streaming"))
        assert 'TO "streaming"' in answer.stdout


class TestTrouble:
    @pytest.mark.parametrize(
        ("command", "given", "code"),
        [
            (("status",), "postgresql://somebody:s3cret@127.0.0.1:1/nowhere", ExitCode.FAILED),
            (("init",), "host=127.0.0.1 port=1 password=s3cret", ExitCode.FAILED),
            (("history", "orders"), "jdbc:postgresql://somebody:s3cret@host/db", ExitCode.USAGE),
        ],
    )
    def test_no_password_is_shown(self, pgonce, command, given, code):
        """A server that is away, or a URL that cannot be read, ends in one text without the password."""
        failed = pgonce(*command, "--url", given)
        assert failed.exit_code == code
        assert failed.stderr.startswith("Error: [")
        assert "s3cret" not in failed.output
        assert "Traceback" not in failed.output

    def test_a_command_line_that_cannot_be_read_is_an_error_of_usage(self, pgonce):
        """A command line that cannot be read has the exit code of usage."""
        assert pgonce("offsets").exit_code == ExitCode.USAGE
        assert pgonce("history", "orders", "--limit", 0).exit_code == ExitCode.USAGE

    def test_help_lists_the_exit_codes(self, pgonce):
        """--help says what each exit code means, and never shows the environment's URL."""
        shown = pgonce("--help").stdout
        for code in ExitCode:
            assert f"{int(code)}: " in shown
        assert "pgonce_test_" not in pgonce("status", "--help").stdout

    def test_variables_of_libpq_say_where_the_server_is(self, url, pgonce, monkeypatch):
        """Without --url and PGONCE_URL, libpq's own variables say where the server is."""
        publish(url, 3, KAFKA)
        with psycopg.connect(url) as connection:
            parameters = connection.info.get_parameters()
        monkeypatch.delenv("PGONCE_URL")
        for name, variable in {"host": "PGHOST", "port": "PGPORT", "user": "PGUSER", "dbname": "PGDATABASE"}.items():
            monkeypatch.setenv(variable, parameters[name])
        if "password" in url:
            monkeypatch.setenv("PGPASSWORD", psycopg.conninfo.conninfo_to_dict(url)["password"])
        assert [writer["batch_id"] for writer in json.loads(pgonce("status", "--json").stdout)] == [3]


def test_it_needs_no_spark():
    """No command imports pyspark before it needs it: the command line starts as quickly as before."""
    code = "import pgonce.cli.main, sys; print({'pyspark', 'pyarrow', 'pgpq'} & set(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"


def test_status_says_where_batch_jobs_are(url, pgonce):
    """Where the ledger has batch jobs only, status has no query, and names their table."""
    publish_job(url, "2026-11-20")
    shown = pgonce("status").stdout
    assert "2026-11-20" not in shown
    assert "SELECT * FROM pgonce.batch_jobs" in shown
