"""
The list of what users may rely on, tests/repository/public_interface.txt, made from the code; ``make docs`` writes it.

Runs in: the tests, which compare, and the command. Invariant: one thing is one line, so that a difference between two
releases shows what users have to change. The codes of errors are read from their page, because other tests hold that
page to the code, and the columns of the ledger from its comments, which others hold to a real ledger.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from support.manual_page import name_of, parameters_of, usage
from support.pages import DOCS
from support.tables_page import ledger_columns

import pgonce
from pgonce.cli.main import app
from pgonce.cli.terms import EXIT_CODES
from pgonce.offsets_store.status.states import STATES, QueryState
from pgonce.offsets_store.status.stored import PartitionLag
from pgonce.serve.metrics import text as metrics_text
from pgonce.serve.reader import Snapshot
from pgonce.serve.tally import Counts
from pgonce.sink.options.definitions import OPTIONS
from pgonce.sink.options.option import Option, Way

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "repository" / "public_interface.txt"
_SOURCES = ("sink", "offsets_store", "pgonce")
_ABOUT = """\
What users of pgonce may rely on. `make docs` writes this file from the code; SUPPORT.md says what it promises.
"""


def page() -> str:
    """The whole file."""
    parts = {
        "Names of the package pgonce": _names(),
        "Extras, as in pip install 'pgonce[NAME]'": sorted(metadata.metadata("pgonce").get_all("Provides-Extra") or ()),
        'Options of format("pgonce") and arguments': (_option(one) for one in OPTIONS.values()),
        "Codes of errors": sorted(error_codes()),
        "Commands": _commands(),
        "Exit codes": (f"{int(code)} {code.name}" for code in EXIT_CODES),
        "States of a query": STATES,
        "Tables and views of the schema pgonce": sorted(
            f"{name}.{column}" for name, columns in ledger_columns().items() for column in columns
        ),
        "Functions of the schema pgonce": _functions(),
        "Metrics of pgonce serve": _metrics(),
        "Paths of pgonce serve, for programs": _paths(),
        "Environment variables": sorted(_variables()),
    }  # fmt: skip
    return _ABOUT + "".join(f"\n# {heading}\n\n{_lines(lines)}" for heading, lines in parts.items())


def _lines(lines: Any) -> str:
    return "".join(f"{line}\n" for line in lines)


def error_codes() -> list[str]:
    """The codes that docs/errors.md describes."""
    return re.findall(r"^\| `([A-Z0-9_]+)` \|", (DOCS / "errors.md").read_text(), re.MULTILINE)


class _Bare(str):
    """A type as it is written in the source, without the quotes that a signature shows around it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _call(function: Any, name: str = "") -> str:
    """A function with its arguments, their types and defaults, and what it returns."""
    signature = inspect.signature(function)
    arguments = [
        one if one.annotation is one.empty else one.replace(annotation=_Bare(one.annotation))
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    returned = signature.return_annotation
    ends = returned if returned is signature.empty else _Bare(returned)
    return f"{name or function.__name__}{signature.replace(parameters=arguments, return_annotation=ends)}"


def _names() -> Iterator[str]:
    for name in pgonce.__all__:
        public = getattr(pgonce, name)
        if not isinstance(public, type):
            yield _call(public)
            continue
        made = _constructor(public)
        yield f"class {name if made is None else _call(made, name).partition(' -> ')[0]}"
        fields = inspect.get_annotations(public) if made is None and public is not pgonce.BatchTransaction else {}
        # A named tuple keeps its types in an object each.
        yield from (f"{name}.{field}: {getattr(kind, '__forward_arg__', kind)}" for field, kind in fields.items())
        ours = [base for base in reversed(public.__mro__) if base.__module__.startswith("pgonce.")]
        for member, value in sorted({one: value for base in ours for one, value in vars(base).items()}.items()):
            if member.startswith("_") and member != "__call__":
                continue
            if isinstance(value, property):
                yield f"{name}.{member}: {value.fget.__annotations__['return']}"
            elif inspect.isfunction(value):
                yield f"{name}.{_call(value)}"


def _constructor(public: type) -> Any:
    """What users call to make one; None for what they only get from pgonce."""
    if dataclasses.is_dataclass(public) or hasattr(public, "_fields") or public is pgonce.BatchTransaction:
        return None
    return vars(public).get("__init__") or vars(public)["__new__"]


def _option(option: Option) -> str:
    ways = [way.name.lower() for way in Way if way in option.ways]
    facts = {
        "for": " ".join(ways),
        "modes": " ".join(option.modes),
        "values": " ".join(option.words),
        "type": " ".join(sorted(kind.__name__ for kind in option.kinds)),
        "default": "" if option.default in (None, ()) else repr(option.default),
        "least": option.least,
        "most": option.most,
        "needs": " ".join(option.needs),
        "same for all tables with": option.alike,
        "not with": " ".join(option.clashes),
    }
    said = "; ".join(f"{what}: {value}" for what, value in facts.items() if value not in (None, ""))
    return f"{option.name} ({option.argument}): {said}"


def _commands() -> Iterator[str]:
    for command in sorted(app.registered_commands, key=name_of):
        yield usage(command).removesuffix(" [OPTIONS]")
        yield from (f"pgonce {name_of(command)} {one.shown}" for one in parameters_of(command) if one.is_option)


def _functions() -> list[str]:
    """What programs may call; of a function that a later migration has replaced, the newest form."""
    migrations = sorted((ROOT / "offsets_store" / "ledger" / "migrations").glob("*.sql"))
    text = "\n".join(path.read_text() for path in migrations)
    found = re.findall(r"FUNCTION (pgonce\.(?:wait_for|follow_exchange)\(.*\))(?: RETURNS text)?$", text, re.MULTILINE)
    return sorted({signature.partition("(")[0]: signature for signature in found}.values())


def _metrics() -> Iterator[str]:
    """Each family with its type and labels, from a scrape of a made-up query."""
    now = datetime.now(timezone.utc)
    facts: Mapping[str, Any] = {field.name: None for field in dataclasses.fields(QueryState)}
    state = QueryState(**{**facts, "query_id": "q", "query_name": "q", "sink_name": "s", "state": "running",
                          "published_at": now, "lag": 1, "lag_seconds": 1.0, "dead_letters": 0})  # fmt: skip
    seen = [("+Inf", 1.0)], 1.0
    counts = Counts({("q", "s"): 1}, {("q", "s"): 1}, {("q", "s"): 1}, {("q", "s", "CODE"): 1}, {("q", "s"): seen})
    scraped = metrics_text(
        Snapshot(at=now, states=[state], counts=counts),
        {("q", "s"): [PartitionLag("q", "s", "0", "t", 0, 1, 2, 1, now, 1.0)]},
    ).decode()
    for family in text_string_to_metric_families(scraped):
        labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
        total = "_total" if family.type == "counter" else ""
        yield f"{family.name}{total} {family.type} {' '.join(labels)}".rstrip()


def _paths() -> list[str]:
    text = (ROOT / "pgonce" / "serve" / "app.py").read_text()
    return [path.replace(":path", "") for path in re.findall(r'Route\("(/(?:healthz|metrics)[^"]*)"', text)]


def _variables() -> set[str]:
    files = [path for folder in _SOURCES for path in (ROOT / folder).rglob("*.py")]
    nodes = (node for path in files for node in ast.walk(ast.parse(path.read_text())))
    constants = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in constants if re.fullmatch(r"PGONCE_[A-Z_]+", text)}


if __name__ == "__main__":
    FILE.write_text(page())
