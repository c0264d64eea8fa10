"""
The command ``pgonce dead-letters``: what it shows, what it asks for first, and its exit codes.

Covers: pgonce.cli.terms.
"""

from __future__ import annotations

import json
import subprocess
import sys
from base64 import b64decode

import psycopg
import pytest
from support.committed_rows import ids
from support.dead_letters import a_past, by_key, put_aside
from support.recoveries import noted
from typer.testing import CliRunner

from pgonce.cli.main import app
from pgonce.cli.terms import ExitCode


@pytest.fixture
def admin(url):
    """A connection that may do anything; a query has published a batch, and there is its table."""
    a_past(url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE events (id bigint PRIMARY KEY, name varchar(5))")
        yield connection


@pytest.fixture
def command(url, monkeypatch):
    """Give the command, for the query of the test."""
    monkeypatch.setenv("PGONCE_URL", url)
    return lambda *more: CliRunner().invoke(app, ["dead-letters", "orders", *map(str, more)])


class TestList:
    def test_for_people_and_for_programs(self, admin, command):
        """The table has all that tells the letter, and cuts a row that is long; the JSON has the whole row."""
        assert "No such dead letter" in command().stdout
        assert json.loads(command("--json").stdout) == []
        one = put_aside(admin, {"id": 1, "name": "x" * 1000})
        shown = command()
        assert shown.exit_code == ExitCode.OK
        for text in (str(one), "batch 3", "public.events", '"offset": 7', "name", "22001", "value too long", '"xxx'):
            assert text in shown.stdout
        assert "x" * 500 not in shown.stdout.replace("\n", "")
        # What to type next: the query goes by the beginning of its id.
        command_shown = shown.stdout.splitlines()[-1].strip()
        assert command_shown.startswith("pgonce dead-letters ")
        assert command_shown.endswith(" --replay")
        assert command_shown.split()[2] != "orders"

        (letter,) = json.loads(command("--json").stdout)
        assert set(letter) == {
            "dead_letter_id", "query_id", "sink_name", "batch_id", "target", "position", "row_data", "column_name",
            "code", "message", "destination", "made_at", "record_value",
        }  # fmt: skip
        assert letter["dead_letter_id"] == one
        assert json.loads(letter["row_data"]) == {"id": 1, "name": "x" * 1000}

    def test_a_sink_is_in_what_to_type_next(self, admin, command):
        """The command that is shown means the same letters."""
        put_aside(admin, {"id": 1})
        shown = command("--sink", "public.orders").stdout.splitlines()[-1]
        assert shown.endswith(" --sink public.orders --replay")

    def test_a_row_that_no_replay_writes(self, admin, command):
        """Without onlyNewer, a newer row may be there: the command that is shown says so, and the ways out."""
        put_aside(admin, {"id": 1}, by_key())
        assert command().stdout.endswith(" --replay\n")
        tried = command("--replay")
        assert (tried.exit_code, "without onlyNewer" in tried.stderr) == (ExitCode.NEEDS_PERSON, True)

    def test_a_record_that_could_not_be_decoded_stands_in_place_of_a_row(self, admin, command):
        """As text, in which bytes that are none are escaped; a program gets it in base64."""
        put_aside(admin, {}, code="RECORD_UNDECODED", record_value=b'{"id": "\xff\x1b[2J"}')
        shown = command().stdout
        assert '{"id": "\\xff\\x1b[2J"}' in shown
        assert "\x1b" not in shown
        (letter,) = json.loads(command("--json").stdout)
        assert b64decode(letter["record_value"]) == b'{"id": "\xff\x1b[2J"}'

    def test_a_row_does_not_command_the_terminal(self, admin, command):
        """Escape sequences in a row, or in the words of a trigger, are shown as text."""
        put_aside(admin, {"id": 1}, message="\x1b[2J gone", row_data='{"name": "\u202e"}')
        shown = command().stdout
        assert "\x1b" not in shown
        assert "\u202e" not in shown


class TestReplay:
    def test_shown_first_then_done(self, admin, command):
        """Without --yes it only tells; with it the rows are in the table, and the ledger has the reason."""
        one = put_aside(admin, {"id": 1, "name": "n1"})
        shown = command("--replay")
        assert (shown.exit_code, ids(admin), noted(admin)) == (ExitCode.OK, [], [])
        assert f"1 into public.events (mode append): id {one}." in shown.stdout
        assert "--yes" in shown.stdout
        done = command("--replay", "--reason", "mended", "--yes")
        assert (done.exit_code, done.stderr, ids(admin)) == (ExitCode.OK, "", [1])
        assert noted(admin)[0][:3] == ("replay-dead-letters", None, "mended")
        assert "nothing was changed" in command("--replay", "--yes").stdout

    def test_each_refusal_has_an_exit_code_of_its_own(self, admin, command):
        """A row that is refused again, and a letter that cannot be replayed, have exit codes of their own."""
        put_aside(admin, {"id": 1, "name": "too long"})
        refused = command("--replay", "--yes")
        assert refused.exit_code == ExitCode.FAILED
        assert "[VALUE_NOT_STORABLE]" in refused.stdout
        put_aside(admin, {"id": 2}, None, code="ROUTE_UNKNOWN")
        assert command("--replay").exit_code == ExitCode.NEEDS_PERSON
        assert command("--replay", "--id", 99).exit_code == ExitCode.NOT_FOUND

    def test_a_refused_row_keeps_no_other_row_out(self, admin, command):
        """Rows that are refused again do not keep the others out; they stay, and are named, as the dry run has said."""
        good = [put_aside(admin, {"id": 1, "name": "n1"})]
        bad = [put_aside(admin, {"id": 2, "name": "too long"}), put_aside(admin, {"id": 1, "name": "again"})]
        good.append(put_aside(admin, {"id": 4, "name": "n4"}))
        shown = command("--replay")
        assert (shown.exit_code, ids(admin)) == (ExitCode.FAILED, [])
        done = command("--replay", "--yes")
        assert (done.exit_code, ids(admin)) == (ExitCode.FAILED, [1, 4])
        *said, last = done.stdout.splitlines()
        assert (said, last) == (shown.stdout.splitlines()[:-1], "Replayed 2 of 4.")
        assert [f"id {letter}: the row is refused, so its letter stays: " in done.stdout for letter in bad] == [
            True
        ] * 2
        assert [one["dead_letter_id"] for one in json.loads(command("--json").stdout)] == bad[::-1]
        assert [details["ids"] for _, _, _, details in noted(admin)] == [good]

    def test_a_replay_whose_note_fails_changes_nothing(self, admin, command):
        """No row is written whose letter stays, and no letter goes without its row."""
        letters = [put_aside(admin, {"id": number, "name": "n"}) for number in (1, 2, 3)]
        # As on a ledger that takes no writes any more.
        admin.execute("ALTER TABLE pgonce.interventions ADD CHECK (kind <> 'replay-dead-letters')")
        assert command("--replay", "--yes").exit_code == ExitCode.FAILED
        assert ids(admin) == []
        assert [one["dead_letter_id"] for one in json.loads(command("--json").stdout)] == letters[::-1]

    def test_where_there_is_no_pyspark(self, url, admin, command):
        """The list works; a replay says what it lacks."""
        put_aside(admin, {"id": 1, "name": "n1"})
        hidden = "import sys; sys.modules['pyspark'] = None; from pgonce.cli.main import main; main()"
        run = [sys.executable, "-c", hidden, "dead-letters", "orders", "--url", url]
        listed = subprocess.run(run, capture_output=True, text=True, check=False)
        assert (listed.returncode, "n1" in listed.stdout) == (ExitCode.OK, True)
        refused = subprocess.run([*run, "--replay"], capture_output=True, text=True, check=False)
        assert (refused.returncode, "[NOT_INSTALLED]" in refused.stderr) == (ExitCode.FAILED, True)


class TestDiscard:
    def test_shown_first_then_done(self, admin, command):
        """Without --yes it only tells; with it the letters are gone, and the reason is kept."""
        one = put_aside(admin, {"id": 1})
        shown = command("--discard", "--reason", "spam")
        assert (shown.exit_code, noted(admin)) == (ExitCode.OK, [])
        assert f"1 for public.events, refused as 22001: id {one}." in shown.stdout
        assert "--yes" in shown.stdout
        assert command("--discard", "--reason", "spam", "--yes").exit_code == ExitCode.OK
        assert noted(admin)[0][:3] == ("discard-dead-letters", None, "spam")
        assert json.loads(command("--json").stdout) == []

    def test_letters_are_not_discarded_without_a_reason(self, admin, command):
        """It asks for one."""
        put_aside(admin, {"id": 1})
        for given in ([], ["--reason", " "]):
            assert "[OPTION_MISSING]" in command("--discard", "--yes", *given).stderr


@pytest.mark.parametrize(
    "given",
    [["--replay", "--discard"], ["--limit", "0"], ["--set", "a=1"], ["--json", "--replay"]],
)
def test_options_that_exclude_each_other_are_refused(admin, command, given):
    """What cannot be meant is refused."""
    assert command(*given).exit_code == ExitCode.USAGE
