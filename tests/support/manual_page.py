"""
The manual page docs/pgonce.1, made from the commands; ``make docs`` writes it, and the wheel brings it to share/man.

Runs in: the tests, which compare, and the command.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from typer.models import CommandInfo, OptionInfo, ParameterInfo

from pgonce.cli.main import app
from pgonce.cli.terms import EXIT_CODES

PAGE = Path(__file__).parents[2] / "docs" / "pgonce.1"

_ABOUT = """\
Rows, end offsets and batch id of a micro\\-batch are written in one transaction of Postgres, so each row is in the
table once. These commands read what the ledger (schema
.BR pgonce )
knows of queries, prepare it, and repair what a restart would fail on. Those that repair change nothing without
.BR \\-\\-yes ."""
COMMON = ("url", "as_json")
ENVIRONMENT = {
    "PGONCE_URL": "The connection string, if --url is not given.",
    "PGONCE_PASSWORD_FROM": "A function, module:function, that returns the password for each new connection.",
    "PGHOST, PGPORT, PGDATABASE, PGUSER, PGSERVICE, ...": "libpq's variables, for what the connection string lacks.",
    "NO_COLOR": "If it is set, nothing is coloured.",
}


def page() -> str:
    """The whole page, in the language of man(7)."""
    return "\n".join(
        [
            '.TH PGONCE 1 "" pgonce "User Commands"',
            ".SH NAME",
            "pgonce \\- exactly\\-once PostgreSQL for Spark Structured Streaming",
            ".SH SYNOPSIS",
            ".B pgonce",
            ".I COMMAND",
            "[",
            ".I ARGUMENTS",
            "]",
            ".SH DESCRIPTION",
            _ABOUT,
            ".SH OPTIONS",
            "Most commands take these.",
            *(line for one in common_parameters() for line in _item(one.shown, one.text)),
            ".SH COMMANDS",
            *(line for one in app.registered_commands for line in _command(one)),
            ".SH EXIT STATUS",
            *(line for code, meaning in EXIT_CODES.items() for line in _item(str(int(code)), f"{meaning}.")),
            ".SH ENVIRONMENT",
            *(line for name, meaning in ENVIRONMENT.items() for line in _item(name, meaning)),
            ".SH COMPLETION",
            *_item("pgonce --install-completion", "Completes commands and options."),
            ".SH SEE ALSO",
            ".B pgonce explain",
            "shows what an error's code means.",
            "",
        ]
    )


def _command(command: CommandInfo) -> Iterator[str]:
    parameters = parameters_of(command)
    yield f".SS {_escaped(usage(command))}"
    for paragraph in paragraphs(command):
        yield _escaped(paragraph)
        yield ".PP"
    for one in parameters:
        if one.name not in COMMON:
            yield from _item(one.shown, one.text)


def name_of(command: CommandInfo) -> str:
    """What is typed after ``pgonce``."""
    return command.name or command.callback.__name__


def usage(command: CommandInfo) -> str:
    """How a command is typed."""
    arguments = (one.written for one in parameters_of(command) if not one.is_option)
    return " ".join([f"pgonce {name_of(command)}", *arguments, "[OPTIONS]"])


def paragraphs(command: CommandInfo) -> list[str]:
    """What a command says of itself."""
    text = inspect.cleandoc(command.callback.__doc__ or "")
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]


def parameters_of(command: CommandInfo) -> list[Parameter]:
    """Its arguments, then its options."""
    declared = inspect.signature(command.callback, eval_str=True).parameters.values()
    return sorted(map(Parameter.of, declared), key=lambda one: one.is_option)


def common_parameters() -> list[Parameter]:
    """What most commands take, once."""
    found: dict[str, Parameter] = {}
    for command in app.registered_commands:
        for one in parameters_of(command):
            found.setdefault(one.name, one)
    return [found[name] for name in COMMON]


@dataclass(frozen=True)
class Parameter:
    """An argument or option of a command, as its function declares it."""

    name: str
    kind: Any
    default: Any
    information: ParameterInfo

    @classmethod
    def of(cls, declared: inspect.Parameter) -> Parameter:
        """The parameter that a function's signature declares so."""
        kind, *information = get_args(declared.annotation)
        return cls(declared.name, kind, declared.default, information[0])

    @property
    def is_option(self) -> bool:
        """Whether it begins with two hyphens."""
        return isinstance(self.information, OptionInfo)

    @property
    def written(self) -> str:
        """An argument, as a command is typed."""
        name = self.information.metavar or self.name.upper()
        return name if self.default in (inspect.Parameter.empty, ...) else f"[{name}]"

    @property
    def shown(self) -> str:
        """What stands before its explanation."""
        if not self.is_option:
            return self.written.strip("[]")
        # Typer takes the first name for the default, until it has read the annotation.
        given = [self.information.default, *(self.information.param_decls or ())]
        said = [one for one in given if isinstance(one, str) and one.startswith("-")]
        names = ", ".join(said or ["--" + self.name.replace("_", "-")])
        return names if self.kind is bool else f"{names} {self._value}"

    @property
    def _value(self) -> str:
        (kind, *_) = [one for one in (get_args(self.kind) or [self.kind]) if one is not type(None)]
        if isinstance(kind, str):
            # The first one of a Literal.
            return "|".join(get_args(self.kind))
        (kind, *_) = get_args(kind) or [kind]
        return {str: "TEXT", int: "NUMBER", float: "NUMBER", Path: "FILE"}[kind]

    @property
    def text(self) -> str:
        """Its explanation, with what counts if it is not given."""
        default = getattr(self.default, "value", self.default)
        is_said = self.is_option and self.kind is not bool and default not in (None, "", inspect.Parameter.empty)
        return f"{self.information.help}{f' Without it: {default}.' if is_said else ''}"


def _item(term: str, text: str) -> Iterator[str]:
    yield ".TP"
    yield f".B {_escaped(term)}"
    yield _escaped(text)


def _escaped(text: str) -> str:
    """Text as man(7) takes it: a hyphen that is typed stays one, and no line begins with what is an order."""
    text = re.sub(r"([\\-])", lambda found: "\\e" if found[1] == "\\" else "\\-", text)
    return f"\\&{text}" if text.startswith((".", "'")) else text


if __name__ == "__main__":
    PAGE.write_text(page())
