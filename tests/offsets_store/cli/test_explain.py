"""What the command says of an error, where only the installed package is at hand."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pgonce.offsets_store.cli.explain import explanation, pages
from pgonce.offsets_store.cli.main import app

ROOT = Path(__file__).parents[3]


def explained(name):
    """The command's exit code and all that it says."""
    result = CliRunner().invoke(app, ["explain", name])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["TYPE_MISMATCH", "type_mismatch", "[TYPE_MISMATCH]"])
def test_a_code_is_explained_by_its_row(name):
    """Its section, what it means, and what to do; a link becomes the command that shows the page."""
    code, text = explained(name)
    assert code == 0
    assert text.startswith("TYPE_MISMATCH (Types and values)\n")
    assert "What to do: Cast in Spark" in text
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


def test_all_pages_are_in_the_wheel():
    """A page is shown as it is written; a new one must be put into the wheel too."""
    assert pages() == {page.stem: page.read_text() for page in (ROOT / "docs").glob("*.md")}
    assert explained("types")[1].startswith("# Types")


def test_an_unknown_name_is_told_the_nearest():
    """A misspelt code is no reason to look for a document."""
    code, text = explained("TYPE_MISSMATCH")
    assert code == 2
    assert "TYPE_MISMATCH" in text


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
