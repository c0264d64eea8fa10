"""
Broken versions of the product, and how one is applied to a copy of the installed package.

Pure, but for the copy. Invariant: a mutant changes exactly one place, inside the function or constant that it names.
"""

from __future__ import annotations

import ast
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_DATA = Path(__file__).with_name("mutants.toml")
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """
    One edit of the function, class or constant ``function`` of ``file``, and the faults that may show it.

    ``nearest`` is the proof that is run first, because it is about this function.
    """

    name: str
    file: str
    function: str
    old: str
    new: str
    fault: str | None = None
    nearest: str = "verdicts"

    def applied_to(self, source: str) -> str:
        """
        The module's source with the edit.

        :raises ValueError: the function is not there, or does not have ``old`` exactly once.
        """
        lines = source.splitlines(keepends=True)
        start, end = _lines_of(ast.parse(source), self.function)
        inside = "".join(lines[start - 1 : end])
        if inside.count(self.old) != 1:
            raise ValueError(f"{self.file}, {self.function}: the old text is there {inside.count(self.old)} times")
        edited = "".join(lines[: start - 1]) + inside.replace(self.old, self.new) + "".join(lines[end:])
        ast.parse(edited)
        return edited


def all_mutants() -> list[Mutant]:
    """Those of ``mutants.toml``."""
    return [Mutant(**given) for given in tomllib.loads(_DATA.read_text())["mutant"]]


def copy_with(mutant: Mutant | None, installed: Path, folder: Path) -> Path:
    """
    Copy the installed package into a new folder, and apply a mutant to the copy.

    :return: what goes to the front of PYTHONPATH.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(installed, folder / "pgonce", ignore=shutil.ignore_patterns("__pycache__"))
    if mutant is not None:
        place = folder / "pgonce" / mutant.file.removeprefix("pgonce/")
        place.write_text(mutant.applied_to(place.read_text()))
    return folder


def _lines_of(module: ast.Module, name: str) -> tuple[int, int]:
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node.lineno, node.end_lineno or node.lineno
        if isinstance(node, ast.Assign) and any(isinstance(to, ast.Name) and to.id == name for to in node.targets):
            return node.lineno, node.end_lineno or node.lineno
    raise ValueError(f"there is no {name}")
