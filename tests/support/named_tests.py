"""
Find the tests that a document names as its proof.

Pure, but for reading the files. Invariant: a test that was renamed or removed is no longer there.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def is_there(test: str) -> bool:
    """Whether ``file::Class::function[id]`` is a test; an id must be a name that its file knows."""
    file, *names = re.sub(r"\[.*", "", test).split("::")
    path = ROOT / file
    if not path.is_file():
        return False
    tree: ast.AST = ast.parse(path.read_text())
    known = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    for name in names:
        body = getattr(tree, "body", [])
        found = [n for n in body if isinstance(n, (ast.FunctionDef, ast.ClassDef)) and n.name == name]
        if not found:
            return False
        tree = found[0]
    return set(re.findall(r"\[(\w+)\]", test)) <= known
