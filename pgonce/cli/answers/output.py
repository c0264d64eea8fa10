"""
Show answers, as lines, tables or JSON.

Runs in the command ``pgonce``. Invariant: each line that is printed is one line, even if its text has line breaks, and
nothing that came from outside makes the terminal obey or hide anything; what is unknown reads ``?``, and null in JSON.
The keys of the JSON are stable, and both forms show the same facts.
"""

from __future__ import annotations

import dataclasses
import json
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import typer
from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pgonce.offsets_store.log_lines import one_line
from pgonce.offsets_store.offsets import Offsets, is_kafka


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text on stdout."""
    typer.echo("\n".join(map(one_line, lines)))


def at_work(what: str) -> Live:
    """Show on stderr, if that is a terminal, that ``what`` is being done."""
    # A sign in ASCII, because a terminal without Unicode has it too.
    sign = Spinner("line", Text(what))
    # Standard output stays what it is: it may be a file.
    return Live(sign, console=Console(stderr=True), transient=True, redirect_stdout=False, redirect_stderr=False)


def print_error(text: str) -> None:
    """An error's text on stderr."""
    typer.echo(one_line(text), err=True)


def print_json(answer: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(answer, indent=2, default=_encoded))


def _encoded(value: datetime | UUID | bytes) -> str:
    """What JSON has no form for, as text."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    return str(value) if isinstance(value, UUID) else value.isoformat()


def offsets_text(offsets: Offsets | None) -> str:
    """Where sources stand, one line for each topic or source."""
    if offsets is None:
        return "?"
    return "\n".join(
        (f"{one_line(source)}: " if len(offsets) > 1 else "") + _offset(at) for source, at in offsets.items()
    )


def _offset(offset: Any) -> str:
    if not is_kafka(offset):
        return json_text(offset)
    return "\n".join(
        one_line(f"{topic} " + " ".join(f"{partition}:{parts[partition]}" for partition in sorted(parts, key=int)))
        for topic, parts in sorted(offset.items())
    )


def json_text(value: Any) -> str:
    """A value as JSON; ``?`` where it is unknown."""
    return "?" if value is None else json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    """A value as text; ``?`` where it is unknown."""
    return "?" if value is None else str(value)


def print_found(
    found: Sequence[Any],
    table: Callable[[Sequence[Any]], Table],
    *,
    as_json: bool,
    if_none: str | None = None,
) -> None:
    """Show dataclasses that were found, as JSON or as a table; ``if_none`` is said in place of an empty table."""
    if as_json:
        print_json([dataclasses.asdict(one) for one in found])
    elif found or if_none is None:
        print_table(table(found))
    else:
        typer.echo(if_none)


def print_table(table: Table) -> None:
    """A table on stdout; if that is not a terminal, as wide as it needs to be."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        table.expand = False
        unbounded = console.options.update(width=10_000)
        console.width = max(console.width, table.__rich_measure__(console, unbounded).maximum)
    console.print(table)


def columns(*names: str, numbers: Collection[str] = (), shortened: Collection[str] = ()) -> Table:
    """
    A table of one line a row, without lines around it.

    :param numbers: the columns whose cells are numbers, which stand at the right.
    :param shortened: the columns that may lose the end of a cell where the terminal is narrow; others never do.
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=None)
    for name in names:
        is_short = name in shortened
        table.add_column(
            name,
            justify="right" if name in numbers else "left",
            overflow="ellipsis" if is_short else "fold",
            no_wrap=is_short or name in numbers,
            ratio=1 if is_short else None,
        )
    table.expand = bool(shortened)
    return table


def add_row(table: Table, *cells: str | tuple[str, str]) -> None:
    """One line of a table. A cell is a text, or a text with its style."""
    styled = ((cell, "") if isinstance(cell, str) else cell for cell in cells)
    table.add_row(*(Text(one_line(text), style) for text, style in styled))


def facts(rows: Iterable[tuple[str, str | list[str]]]) -> Table:
    """Names and what is to be said of them, in one line or several; a long line goes on in the next one."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, said in rows:
        lines = [said] if isinstance(said, str) else said
        table.add_row(Text(name, "dim"), Text("\n".join(map(one_line, lines))))
    return table
