"""Does every name that a test, a benchmark or the laboratory replaces exist in the module or class that it names?"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("tests", "testbed", "benchmarks", "examples")
REPLACING = ("setattr", "delattr", "patch", "object")


def imported(tree: ast.AST) -> dict[str, str]:
    """The dotted name of what each imported name of a file stands for, wherever in the file it is imported."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            # `import a.b` binds a, `import a.b as c` binds c.
            names |= {one.asname or one.name.split(".")[0]: one.asname and one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
    return {name: whole or name for name, whole in names.items()}


def dotted(node: ast.expr, names: dict[str, str]) -> str | None:
    """The dotted name of an expression that begins with an imported name; None for a variable, say."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and (owner := dotted(node.value, names)):
        return f"{owner}.{node.attr}"
    return None


def replaced(source: str) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of each attribute that this source replaces by a name known before it runs."""
    tree = ast.parse(source)
    names = imported(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target]
            yield from (
                (node.lineno, name)
                for one in targets
                if "." in (name := dotted(one, names) or "") and isinstance(one, ast.Attribute)
            )
        elif isinstance(node, ast.Call) and node.args and called(node) in REPLACING:
            match node.args:
                case [ast.Constant(str(name)), *_]:
                    yield node.lineno, name
                case [owner, ast.Constant(str(attribute)), *_] if name := dotted(owner, names):
                    yield node.lineno, f"{name}.{attribute}"


def called(call: ast.Call) -> str:
    """The last part of the name of what is called."""
    return getattr(call.func, "attr", None) or getattr(call.func, "id", "")


def found(name: str) -> Any:
    """What stands under this dotted name. Raises AttributeError or ImportError if there is nothing."""
    first, *parts = name.split(".")
    whole, at = first, importlib.import_module(first)
    for part in parts:
        whole = f"{whole}.{part}"
        try:
            at = getattr(at, part)
        except AttributeError:
            # A module that nobody has imported yet is no attribute of its package.
            at = importlib.import_module(whole)
    return at


def missing(source: str) -> list[str]:
    """The replaced names that lead nowhere, each with its line."""
    lost = []
    for line, name in replaced(source):
        try:
            found(name)
        except (AttributeError, ImportError):
            lost.append(f"{line}: {name}")
    return lost


FILES = [str(path.relative_to(ROOT)) for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
REPLACE = [file for file in FILES if any(replaced((ROOT / file).read_text()))]


@pytest.mark.parametrize("file", REPLACE)
def test_what_is_replaced_exists(file, monkeypatch):
    """A constant that got another name is found at once, even by an assignment, which would simply make a new one."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    assert missing((ROOT / file).read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        'monkeypatch.setattr("pathlib.Path.nobody", 1)',
        'monkeypatch.setattr(pathlib, "nobody", 1)',
        'monkeypatch.setattr(Path, "nobody", 1)',
        'patch.object(pathlib.Path, "nobody")',
        "pathlib.nobody = 1",
    ],
)
def test_what_does_not_exist_is_found(line):
    """By the string, by the module, by the class, or by an assignment."""
    assert missing(f"import pathlib\nfrom pathlib import Path\n{line}\n{line.replace('nobody', '__doc__')}") == [
        f"3: pathlib.{'Path.' if 'Path' in line else ''}nobody"
    ]
