"""What the command says of an error, where only the installed package is at hand."""

from __future__ import annotations

import ast
import re
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pgonce.cli.explain import explanation
from pgonce.cli.main import app

ROOT = Path(__file__).parents[2]


def explained(*names):
    """The command's exit code and all that it says."""
    result = CliRunner().invoke(app, ["explain", *names])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["TYPE_MISMATCH", "type_mismatch", "[TYPE_MISMATCH]"])
def test_a_code_is_explained_by_its_row(name):
    """Its section, what it means, and what to do; a link is shown with its address."""
    code, text = explained(name)
    assert code == 0
    assert text.startswith("TYPE_MISMATCH (Types and values)\n")
    assert "What to do: Cast in Spark, convert in a function" in text
    assert "](" not in explained("TYPE_UNSUPPORTED")[1]
    assert re.search(rf"types \(https://\S+/blob/v{version('pgonce')}/docs/types\.md", explained("TYPE_UNSUPPORTED")[1])


@pytest.mark.parametrize("name", ["types", "lagging", "22001", "TYPE_MISMATCHED", ""])
def test_a_word_that_is_no_code(name):
    """Pages, states and words are what the site is for; a code that is like it is named."""
    code, text = explained(name)
    assert code == 2
    said = " ".join(text.replace("│", " ").split())
    assert f"there is no code {name!r}." in said
    assert ("There is TYPE_MISMATCH" if name == "TYPE_MISMATCHED" else "Page `errors` of the documentation") in said


def texts_of(path):
    """The texts in a module that are no docstrings."""
    tree = ast.parse(path.read_text())
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = {ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, documented)}
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return [text for text in constants if isinstance(text, str) and text not in docstrings]


def test_messages_name_pages_that_there_are():
    """No message names a path of the repository, and each page and code that one names is there."""
    sources = [path for folder in ("sink", "offsets_store", "pgonce") for path in (ROOT / folder).rglob("*.py")]
    texts = [text for path in sources if path.name != "explain.py" for text in texts_of(path)]
    assert [text for text in texts if "docs/" in text] == []
    pages = {page.stem for page in (ROOT / "docs").glob("*.md")}
    named = {name for text in texts for name in re.findall(r"[Pp]age `([\w-]+)` of the documentation", text)}
    assert {"types", "recovering"} <= named <= pages
    codes = {name for text in texts for name in re.findall(r"`pgonce explain ([\w-]+)`", text)}
    assert [name for name in codes if explanation(name) is None] == []
