"""
A fingerprint of the product, so that a table of outcomes, of faults or of versions, is about one version of it.

Pure, but for reading the source. Invariant: comments, docstrings, layout, and where a module stands do not count; any
other change in the folders that take part in a commit does.
"""

from __future__ import annotations

import ast
import hashlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FOLDERS = ("sink", "offsets_store", "pgonce/real_time")
_COMMENT = {".sql": re.compile(r"--.*"), ".java": re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)}


def fingerprint(root: Path = ROOT) -> str:
    """Sixteen hexadecimal digits for the code under ``root``."""
    files = (file for folder in _FOLDERS for file in (root / folder).rglob("*"))
    texts = [plain(file.read_text(), file.suffix) for file in files if file.suffix in (".py", *_COMMENT)]
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:16]


def plain(text: str, suffix: str) -> str:
    """A file's text without what does not count."""
    return _as_text(ast.parse(text)) if suffix == ".py" else " ".join(_COMMENT[suffix].sub("", text).split())


def _as_text(value: object) -> str:
    # Not ast.dump, nor ast.unparse: what they give differs between versions of Python.
    if isinstance(value, list):
        return f"[{' '.join(_as_text(one) for one in value if not _is_docstring(one))}]"
    if not isinstance(value, ast.AST):
        return repr(value)
    said = (f"{name}={_as_text(field)}" for name, field in sorted(ast.iter_fields(value)) if field not in (None, []))
    return f"{type(value).__name__}({' '.join(said)})"


def _is_docstring(node: object) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
