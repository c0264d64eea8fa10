"""The documents agree with the code: codes, verdicts, arguments, commands, links, tests, examples."""

from __future__ import annotations

import ast
import doctest
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from support.named_tests import is_there
from support.public_interface import error_codes

import pgonce
from pgonce.cli.main import app
from pgonce.offsets_store.verdict.decide import PUBLISH, SKIP, Verdict
from pgonce.sink.options.definitions import BY_KEY
from pgonce.sink.options.option import Mode

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    [*(ROOT / "sink").rglob("*.py"), *(ROOT / "offsets_store").rglob("*.py"), *(ROOT / "pgonce").rglob("*.py")]
)
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md"), ROOT / "testbed/README.md"]
)
CODE = re.compile(r"[A-Z][A-Z0-9]+(_[A-Z0-9]+)*")
REFUSALS = {verdict.name for verdict in Verdict} - {verdict.name for verdict in PUBLISH | SKIP}


def name_of(path):
    """A file's path in the repository, to be read in a test's id."""
    return str(path.relative_to(ROOT))


def codes_in(tree: ast.AST) -> set[str]:
    """Every text under a node that could be a code."""
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value)
    }


class RaisedCodes:
    """
    The codes that the source raises, by reading it.

    What takes a code is an error family, a function whose first parameter is called ``code``, or the carrier of a
    value's code to its error. Each call of one must give its code so that it can be found: as a text, as a verdict's
    name, or as a variable ``code``, whose assignments (and the tables that they look into) then hold the texts.
    """

    def __init__(self, sources: dict[str, str]) -> None:
        self._trees = {name: ast.parse(text) for name, text in sources.items()}
        self._takers = self._find_takers()
        self.codes: set[str] = set()
        self.not_found: list[str] = []
        for name, tree in self._trees.items():
            self._read(name, tree)

    def _find_takers(self) -> set[str]:
        takers = {"PgonceError", "UnfitValueError"}
        nodes = [node for tree in self._trees.values() for node in ast.walk(tree)]
        while True:
            found = {
                node.name
                for node in nodes
                if (isinstance(node, ast.ClassDef) and any(base in takers for base in map(ast.unparse, node.bases)))
                or (isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args][:1] == ["code"])
            }
            if found <= takers:
                return takers
            takers |= found

    def _read(self, name: str, tree: ast.Module) -> None:
        tables = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(tree):
            taker = ast.unparse(node.func).removesuffix(".usual") if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and node.args and taker in self._takers:
                code = node.args[0]
                if isinstance(code, ast.Constant):
                    self.codes.add(code.value)
                elif ast.unparse(code) == "verdict.name":
                    self.codes |= REFUSALS
                elif ast.unparse(code) != "code":
                    self.not_found.append(f"{name}:{node.lineno}: {ast.unparse(code)}")
            elif isinstance(node, ast.Assign) and "code" in names_in(node.targets):
                self.codes |= codes_in(node.value)
                for used in names_in([node.value]) & tables.keys():
                    self.codes |= codes_in(tables[used])


def names_in(nodes: list[ast.expr]) -> set[str]:
    """The variables that appear in expressions."""
    return {name.id for node in nodes for name in ast.walk(node) if isinstance(name, ast.Name)}


def test_every_error_code_is_described_once_and_every_description_has_its_error():
    """docs/errors.md and the source know the same codes."""
    raised = RaisedCodes({name_of(path): path.read_text() for path in SOURCES})
    assert raised.not_found == []
    # What tasks in real time raise is Java.
    in_java = (path.read_text() for path in sorted((ROOT / "pgonce").rglob("*.java")))
    of_java = {code for text in in_java for code in re.findall(r'Refusal\.of\(\s*"([A-Z_]+)"', text)}
    described = error_codes()
    assert sorted(described) == sorted({*raised.codes, *of_java})


def test_every_verdict_stands_in_the_guarantees():
    """docs/guarantees.md has a row for each verdict, and for no other."""
    rows = re.findall(r"^\| `([A-Z]+)` \|", (ROOT / "docs/guarantees.md").read_text(), re.MULTILINE)
    assert set(rows) == {verdict.name for verdict in Verdict}


def test_every_write_mode_stands_in_the_pages():
    """Where the modes are listed: docs/writing.md, docs/batch-jobs.md, and for those by key the error NO_KEYS."""
    writing, jobs, errors = ((ROOT / f"docs/{name}.md").read_text() for name in ("writing", "batch-jobs", "errors"))
    modes_of_jobs = re.search(r"^\| Spark's mode \|.*?\n\n", jobs, re.MULTILINE | re.DOTALL)
    no_keys = re.search(r"^\| `NO_KEYS` \|.*$", errors, re.MULTILINE)
    assert modes_of_jobs is not None
    assert no_keys is not None
    modes = get_args(Mode)
    # What Spark has a word for is written with that.
    in_streams = {"complete": 'outputMode("complete")'}
    in_jobs = {"append": '`.mode("append")`', "complete": '`.mode("overwrite")`'}
    assert [mode for mode in modes if in_streams.get(mode, f"`mode={mode}`") not in writing] == []
    assert [mode for mode in modes if in_jobs.get(mode, f"`{mode}`") not in modes_of_jobs[0]] == []
    assert [mode for mode in modes if f"`mode={mode}`" in no_keys[0]] == list(BY_KEY)


def anchors_of(text: str) -> set[str]:
    """The anchors that headings get, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def without_code(text: str) -> str:
    """A document without its code blocks."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def broken_links(document: Path) -> Iterator[str]:
    """The relative links of a document that lead nowhere."""
    text = document.read_text()
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(text)):
        path, _, anchor = link.partition("#")
        if "://" in path or path.startswith("mailto:"):
            continue
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (anchor and anchor not in anchors_of(target.read_text())):
            yield link


def test_every_relative_link_leads_somewhere():
    """Files that are linked exist, and so do the headings in them."""
    broken = {name_of(document): list(broken_links(document)) for document in DOCUMENTS}
    assert {name: links for name, links in broken.items() if links} == {}


def test_the_readme_lists_every_page():
    """Under *More*, each page of docs/ has its link, once."""
    more = (ROOT / "README.md").read_text().partition("\n## More\n")[2]
    listed = re.findall(r"\[[^\]]+\]\(docs/([a-z-]+\.md)\)", more)
    assert sorted(listed) == sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name != "index.md")


def test_the_readme_is_short():
    """A stranger reads it to its end."""
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


def test_every_row_of_the_crash_table_names_a_test_that_exists():
    """The index of crashes promises nothing without its proof."""
    rows = re.findall(r"^\|(.+)\|$", (ROOT / "tests/chaos/crashes.md").read_text(), re.MULTILINE)[2:]
    proofs = {row: re.findall(r"`(tests/[^`]+)`", row.rpartition("|")[2]) for row in rows}
    assert len(proofs) > 10
    assert [row for row, tests in proofs.items() if not tests or not all(map(is_there, tests))] == []


def blocks(document: Path, language: str) -> list[str]:
    """A document's code blocks in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)


def test_python_in_documents_is_python_and_imports_what_there_is():
    """Every Python block compiles, and what it imports from pgonce is there."""
    imported = {
        alias.name
        for document in DOCUMENTS
        for block in blocks(document, "python")
        for node in ast.walk(compile(block, name_of(document), "exec", ast.PyCF_ONLY_AST))
        if isinstance(node, ast.ImportFrom) and node.module == "pgonce"
        for alias in node.names
    }
    assert {"PostgresBatchWriter", "transactional_batch", "OffsetsStore"} <= imported <= set(pgonce.__all__)


# One has a call, and not what it gives.
WITH_EXAMPLES = [path for path in SOURCES if ">>>" in path.read_text() and path.name != "search_path.py"]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=name_of)
def test_the_examples_in_docstrings_hold(path, admin):
    """What they show is so; ``connection`` is one to Postgres there."""
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    module = import_module(f"pgonce.{name.removeprefix('pgonce.')}")
    assert doctest.testmod(module, extraglobs={"connection": admin}).failed == 0


def test_examples_name_the_connector_with_which_they_are_tested():
    """Spark's Kafka connector, in the version that the tests have beside the PySpark that pip installs."""
    pom = (ROOT / "testbed" / "connector" / "pom.xml").read_text()
    tested = re.search(r"<artifactId>spark-sql-kafka-0-10_2.13</artifactId>\s*<version>(.+)</version>", pom)
    shown = [
        version
        for path in [*DOCUMENTS, *(ROOT / "examples").rglob("*.py"), ROOT / "examples" / "compose" / "compose.yaml"]
        for version in re.findall(r"spark-sql-kafka-0-10_2.13:([\d.]+)", path.read_text())
    ]
    assert len(shown) >= 5
    assert {*shown} == {tested[1]}


def commands_in(document: Path) -> set[tuple[str, str]]:
    """The commands that a file names, in backticks or in a shell block: ``("pgonce", "status")``."""
    text = document.read_text()
    quoted = [*re.findall(r"`([^`\n]+)`", text), *"\n".join(blocks(document, "sh")).splitlines()]
    return {match.groups() for line in quoted if (match := re.match(r"(pgonce|make) ([a-z][a-z-]+)\b", line))}


def test_every_command_that_is_named_exists():
    """A remedy or a document names only commands of ``pgonce`` and targets of make that there are."""
    named = set().union(*map(commands_in, [*DOCUMENTS, *SOURCES]))
    there = {("pgonce", command.name or command.callback.__name__) for command in app.registered_commands}
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {("pgonce", "offsets"), ("make", "test")} <= named
    assert named - there - {("make", target) for target in targets} == set()


def test_each_target_of_make_does_something():
    """What ``make help`` lists has commands, or needs targets that have them."""
    lines = (ROOT / "Makefile").read_text().splitlines()
    listed = [number for number, line in enumerate(lines) if re.match(r"[a-z-]+:.*## ", line)]
    idle = [lines[number] for number in listed if not lines[number + 1].startswith("\t")]
    assert [line.partition(":")[0] for line in idle] == ["setup", "check"]
