"""
The pages of the reference that only the site has, made from the code: commands and Python.

Runs in ``make site``. Invariant: what is named here is not typed here, so that none of it can be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable

from support.manual_page import (
    COMMON,
    ENVIRONMENT,
    Parameter,
    common_parameters,
    name_of,
    paragraphs,
    parameters_of,
    usage,
)

import pgonce
from pgonce.cli.main import app
from pgonce.cli.terms import EXIT_CODES


def generated_pages() -> dict[str, str]:
    """The text of each page, by its place on the site."""
    return {"reference/commands.md": _commands(), "reference/python.md": _python()}


def _commands() -> str:
    parts = [
        "# Commands",
        "Every command of `pgonce` with its arguments and options; `pgonce COMMAND --help` says the same.",
        "## Options of most commands",
        _parameter_table(common_parameters()),
    ]
    for command in sorted(app.registered_commands, key=name_of):
        parts += [f"## {name_of(command)}", f"```text\n{usage(command)}\n```", *paragraphs(command)]
        if own := [one for one in parameters_of(command) if one.name not in COMMON]:
            parts.append(_parameter_table(own))
    parts += [
        "## Exit codes",
        _table(("Code", "Meaning"), ((f"`{code:d}`", f"{EXIT_CODES[code]}") for code in EXIT_CODES)),
    ]
    parts += [
        "## Environment",
        _table(("Variable", "Meaning"), ((f"`{name}`", text) for name, text in ENVIRONMENT.items())),
    ]
    return _page(parts)


def _parameter_table(parameters: Iterable[Parameter]) -> str:
    return _table(("Option or argument", "Meaning"), ((f"`{one.shown}`", one.text) for one in parameters))


def _python() -> str:
    parts = [
        "# Python, name by name",
        "Every name that `import pgonce` offers, with its signature and docstring. [Python](../python.md) explains what"
        " the names are for.",
    ]
    for name in pgonce.__all__:
        public = getattr(pgonce, name)
        kind = "function" if not isinstance(public, type) else "exception" if issubclass(public, Exception) else "class"
        parts.append(f"## {name}\n\n```{{eval-rst}}\n.. auto{kind}:: pgonce.{name}\n```")
    return _page(parts)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    # A bar would end the cell, in code too.
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part.rstrip() for part in parts) + "\n"
