"""
A fingerprint of the product, so that the table in tests/chaos/faults.md is about one version of it.

Pure, but for reading the source. Invariant: comments, docstrings, the words of errors and log lines, imports, and the
name of the module in which a function stands do not count; any other change to code that takes part in a commit does.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator
from importlib.util import resolve_name
from pathlib import Path

ROOT = Path(__file__).parents[2]

# What Spark, a user or another process calls first; all that these modules import takes part in a commit, or may.
_ENTRANCES = ("PostgresBatchWriter", "transactional_batch", "PgonceDataSource", "run_receiver", "start_real_time")
# The folders of the product: what lies elsewhere, such as an installed copy in .venv, is another one.
_FOLDERS = ("sink", "offsets_store", "pgonce")
# Of SQL and Java nothing else is left out.
_COMMENT = {".sql": re.compile(r"--.*"), ".java": re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)}
_MODULE_NAME = re.compile(r"\b(pgonce|sink|offsets_store)(\.[a-z_]+)+")
_ERROR_CODE = re.compile(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+|[A-Z]{4,}")
_LOG_CALL = re.compile(r"_?log(ger)?\.(debug|info|warning|error|exception|log)")


def fingerprint(root: Path = ROOT) -> str:
    """Sixteen hexadecimal digits for the code under ``root`` that takes part in commits, and for the ledger's form."""
    migrations = sorted((root / "offsets_store").glob("**/migrations/*.sql"))
    in_tasks = sorted((root / "pgonce" / "real_time" / "java" / "pgonce").glob("*.java"))
    texts = [_without_comments(file.read_text(), file.suffix) for file in (*migrations, *in_tasks)]
    return _digest(" ".join([of_trees(modules_of_commits(root).values()), *texts]))


def of_trees(trees: Iterable[ast.Module]) -> str:
    """The same for parsed modules: a set of functions, classes and assignments, wherever they stand."""
    parts = {_digest(_as_text(node)) for tree in trees for node in tree.body if not _is_no_code(node)}
    return _digest(" ".join(sorted(parts)))


def modules_of_commits(root: Path) -> dict[str, ast.Module]:
    """The parsed modules of the wheel from which a commit can be reached by imports, by name."""
    files = dict(_files(root))
    trees = {name: ast.parse(file.read_text()) for name, file in files.items()}
    packages = {name: name if file.stem == "__init__" else name.rpartition(".")[0] for name, file in files.items()}
    entrances = [name for name, tree in trees.items() if any(_defines(node) for node in tree.body)]
    defined = {getattr(node, "name", "") for name in entrances for node in trees[name].body}
    if missing := set(_ENTRANCES) - defined:
        raise LookupError(f"chaos/fingerprint.py begins at {sorted(missing)}, which the product no longer defines.")
    found: dict[str, ast.Module] = {}
    while entrances:
        name = entrances.pop()
        if name not in found and name in trees:
            found[name] = trees[name]
            entrances += _imports(trees[name], packages[name])
        # Who imports a module runs the packages that it stands in.
        entrances += [name.rpartition(".")[0]] if "." in name else []
    return found


def _without_comments(text: str, suffix: str) -> str:
    return " ".join(_COMMENT[suffix].sub("", text).split())


def _files(root: Path) -> Iterator[tuple[str, Path]]:
    """The modules and the names by which they are imported, but for the name of the package that is installed."""
    for folder in _FOLDERS:
        for file in sorted((root / folder).rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            yield name.removeprefix("pgonce."), file


def _defines(node: ast.stmt) -> bool:
    return isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in _ENTRANCES


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.removeprefix("pgonce.") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            named = "." * node.level + (node.module or "")
            module = resolve_name(named, package).removeprefix("pgonce.")
            yield module
            # A module of a package, as in ``from sink import staging``.
            yield from (f"{module}.{alias.name}" for alias in node.names)


def _is_no_code(node: object) -> bool:
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    is_log = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _is_log(node.value)
    return is_text or is_log or isinstance(node, (ast.Import, ast.ImportFrom, ast.Pass))


def _is_log(call: ast.Call) -> bool:
    return bool(_LOG_CALL.fullmatch(ast.unparse(call.func)))


def _as_text(value: object) -> str:
    # Not ast.dump, nor ast.unparse: what they give differs between versions of Python.
    if isinstance(value, list):
        return (
            "[" + " ".join(_as_text(one) for one in value if not (isinstance(one, ast.AST) and _is_no_code(one))) + "]"
        )
    if isinstance(value, str):
        return repr(_MODULE_NAME.sub("<module>", value))
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = dict(ast.iter_fields(value))
    if isinstance(value, ast.Call) and (code := _error_code(value)):
        fields = {"func": value.func, "code": code}
    said = (f"{name}={_as_text(field)}" for name, field in sorted(fields.items()) if field not in (None, [], ""))
    return f"{type(value).__name__}({' '.join(said)})"


def _error_code(call: ast.Call) -> str | None:
    first = call.args[0] if call.args else None
    is_code = isinstance(first, ast.Constant) and isinstance(first.value, str) and _ERROR_CODE.fullmatch(first.value)
    return str(first.value) if is_code and len(call.args) > 1 else None  # type: ignore[union-attr]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
