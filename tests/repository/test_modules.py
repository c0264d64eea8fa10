"""Every module has tests that are named after it, or that name it after "Covers:"."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = (
    "offsets_store",
    "sink",
    # The rooms; the others in this folder are links to these two.
    *sorted(
        f"pgonce/{one.parent.name}" for one in (ROOT / "pgonce").glob("*/__init__.py") if not one.parent.is_symlink()
    ),
)
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def name_of(path: Path) -> str:
    """The module in this file, by its dotted name under the repository's root."""
    whole = path.relative_to(ROOT).with_suffix("")
    return ".".join((whole.parent if whole.name == "__init__" else whole).parts)


def is_module(path: Path) -> bool:
    """Whether there is something to test in this file; most folders' own say only what the folder is for."""
    defined = (ast.FunctionDef, ast.ClassDef)
    return path.name != "__init__.py" or any(isinstance(node, defined) for node in ast.parse(path.read_text()).body)


MODULES = {name_of(path) for package in PRODUCT for path in (ROOT / package).rglob("*.py") if is_module(path)}


def covered_by(path: Path) -> list[str]:
    """The modules that the docstring of a file of tests names after "Covers:"."""
    said = re.search(
        r"^Covers: (.*?)(\n\n|\Z)", ast.get_docstring(ast.parse(path.read_text())) or "", re.MULTILINE | re.DOTALL
    )
    return re.findall(r"[a-z_]+(?:\.[a-z_]+)+", said[1]) if said else []


COVERED = {name for path in TESTS for name in covered_by(path)}


def where_tests_stand(folder: Path) -> Path:
    """The folder that has the tests of the modules in ``folder``."""
    return ROOT / "tests" / str(folder.relative_to(ROOT)).removeprefix("pgonce/")


def is_found(module: str) -> bool:
    """Whether tests stand in the same folder under the module's name, or say that they cover it."""
    *folders, name = module.split(".")
    beside = where_tests_stand(ROOT.joinpath(*folders))
    return module in COVERED or any([*beside.glob(f"test_{name}.py"), *beside.glob(f"test_{name}_*.py")])


def test_every_module_has_tests_where_one_looks_for_them():
    """They are called as the module is; or the docstring of other tests has its name, behind "Covers:"."""
    assert [module for module in sorted(MODULES) if not is_found(module)] == []


def test_what_is_said_to_be_covered_is_there():
    """A module that was moved or removed is named no more."""
    assert COVERED <= MODULES


@pytest.mark.parametrize("package", PRODUCT)
def test_tests_are_named_after_what_they_test(package):
    """In the folders that mirror the product's, a file begins with the name of a module there, or of the folder."""
    strangers = []
    for path in where_tests_stand(ROOT / package).rglob("test_*.py"):
        folder = ROOT / package / path.parent.relative_to(where_tests_stand(ROOT / package))
        known = {
            folder.name,
            *(one.stem for one in folder.iterdir() if one.suffix == ".py" or (one / "__init__.py").is_file()),
        }
        stem = path.stem.removeprefix("test_")
        if not any(stem == name or stem.startswith(f"{name}_") for name in known):
            strangers.append(str(path.relative_to(ROOT)))
    assert strangers == []


def test_helpers_stand_in_one_place():
    """What is no test stands in tests/support; chaos, matrix, mutants, release and trial are programs."""
    kept = ("support", "chaos", "matrix", "mutants", "release", "trial")
    others = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py") if path not in TESTS]
    assert [str(path) for path in others if path.parts[0] not in kept and path.name != "conftest.py"] == []
