"""What the command says of an error, where only the installed package is at hand."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pgonce.cli.explain import explanation, pages, state_entries
from pgonce.cli.main import app
from pgonce.offsets_store.status.states import ENDED, STATES

ROOT = Path(__file__).parents[2]


def explained(*names):
    """The command's exit code and all that it says."""
    result = CliRunner().invoke(app, ["explain", *names])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["TYPE_MISMATCH", "type_mismatch", "[TYPE_MISMATCH]"])
def test_a_code_is_explained_by_its_row(name):
    """Its section, what it means, and what to do; a link becomes the command that shows the page."""
    code, text = explained(name)
    assert code == 0
    assert text.startswith("TYPE_MISMATCH (Types and values)\n")
    assert "What to do: What the text says: cast in Spark" in text
    assert "](" not in explained("TYPE_UNSUPPORTED")[1]
    assert "types (`pgonce explain types`)" in explained("TYPE_UNSUPPORTED")[1]


@pytest.mark.parametrize(
    ("sqlstate", "condition", "code"),
    [
        ("22001", "StringDataRightTruncation", "VALUE_NOT_STORABLE"),
        ("23505", "UniqueViolation", "UNIQUE_VIOLATION"),
        ("42p01", "UndefinedTable", "TARGET_MISSING"),
        ("53200", "OutOfMemory", "TARGET_FAILED"),
    ],
)
def test_an_sqlstate_is_explained_by_the_code_that_it_leads_to(sqlstate, condition, code):
    """It stands in dead letters, and in the texts of errors."""
    status, text = explained(sqlstate)
    assert status == 0
    assert text.startswith(f"{sqlstate.upper()} is Postgres's SQLSTATE for {condition}.")
    assert f"\n\n{code} (" in text


def test_a_state_is_explained_by_its_row():
    """When it is said, and what to do; each state has its row, and a page of the same name goes first."""
    status, text = explained("lagging")
    assert status == 0
    assert text.startswith("lagging (a state of a query)\n\nIt is said if it runs, and its oldest unread record")
    assert "What to do: make it faster (`pgonce explain performance`)" in text
    assert set(state_entries()) == set(STATES) - set(ENDED)
    assert explained("running")[1].startswith("# Running")


def test_all_pages_are_in_the_wheel():
    """A page is shown as it is written but for its pictures, and the decisions stay out."""
    written = {page.stem: page.read_text().splitlines() for page in (ROOT / "docs").glob("*.md")}
    assert pages().keys() == written.keys()
    for name, text in pages().items():
        left_out = [line for line in written[name] if line and line not in text.splitlines()]
        assert all(line.startswith("![") for line in left_out)
        assert "![" not in text
    assert explained("types")[1].startswith("# Types")


class TestHeadings:
    def test_what_is_under_a_heading_of_a_page(self):
        """In any case, without backticks, by a part of it; up to the next heading that is as high."""
        code, text = explained("recovering", "starting over")
        assert code == 0
        assert text.startswith("## Starting over\n")
        assert "`pgonce forget --truncate`" in text
        assert "\n## " not in text
        assert explained("recovering", "loading a table again: forget")[1].startswith("## Loading a table again")
        assert explained("recovering", "Starting Ov")[1] == text


class TestWords:
    def test_a_word_is_found_in_headings_and_below_them(self):
        """Each is shown with the command that shows it, which works; those whose headings have the word come first."""
        code, text = explained("upsert")
        assert code == 0
        assert "'upsert' is mentioned under these headings:\n" in text
        commands = re.findall(r"^  pgonce (explain .*)$", text, re.MULTILINE)
        assert commands
        for command in commands:
            shown = CliRunner().invoke(app, shlex.split(command))
            assert shown.exit_code == 0
            assert "upsert" in shown.output.lower()
        assert re.search(r"Codes whose explanation mentions it: .*NO_KEYS", text)

    @pytest.mark.parametrize("name", ["zebra", "upsert(", "upser"])
    def test_a_word_that_stands_nowhere(self, name):
        """It is no pattern, and no part of a word."""
        code, text = explained(name)
        assert code == 2
        assert "do not have that word" in " ".join(text.replace("│", " ").split())


def texts_of(path):
    """The texts in a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [text for text in constants if isinstance(text, str) and text not in docstrings]


def test_messages_name_documents_by_what_an_installed_package_has():
    """No message names a path of the repository, and what it tells to explain is explained."""
    sources = [*(ROOT / "sink").rglob("*.py"), *(ROOT / "offsets_store").rglob("*.py")]
    texts = [text for path in sources for text in texts_of(path)]
    assert [text for text in texts if "docs/" in text] == []
    named = {name for text in texts for name in re.findall(r"`pgonce explain ([\w-]+)`", text)}
    assert "types" in named
    assert [name for name in named if explanation(name) is None] == []
