"""
How do answers, and the values in them, look as text?

Runs in the command ``pgonce``. Invariant: no text that came from outside makes the terminal obey or hide anything; what
is unknown reads ``?``, and null in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import typer

from pgonce.offsets_store.offsets.compare import Offsets, is_kafka


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text on stdout."""
    typer.echo(printable("\n".join(lines)))


def print_error(text: str) -> None:
    """An error's text on stderr."""
    typer.echo(printable(text), err=True)


def print_json(answer: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(answer, indent=2, default=_encode))


def printable(text: str) -> str:
    """``text`` without what a terminal would obey (escape sequences) or hide (marks that turn text around)."""
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


def offsets_text(offsets: Offsets | None) -> str:
    """Where sources stand, one line for each topic or source."""
    if offsets is None:
        return "?"
    return "\n".join((f"{source}: " if len(offsets) > 1 else "") + _offset(at) for source, at in offsets.items())


def _offset(offset: Any) -> str:
    if not is_kafka(offset):
        return json_text(offset)
    return "\n".join(
        f"{topic} " + " ".join(f"{partition}:{parts[partition]}" for partition in sorted(parts, key=int))
        for topic, parts in sorted(offset.items())
    )


def tables_text(tables: Mapping[str, int] | None) -> str:
    """How many rows went into each table, a line each; empty where they all went into one."""
    return "\n".join(f"{count} into {table}" for table, count in tables.items()) if tables and len(tables) > 1 else ""


def counts_text(counts: Mapping[str, int] | None) -> str:
    """What became of a batch's rows, one line for each outcome that any row had."""
    return "\n".join(f"{count} {outcome.replace('_', ' ')}" for outcome, count in (counts or {}).items() if count)


def json_text(value: Any) -> str:
    """A value as JSON; ``?`` where it is unknown."""
    return "?" if value is None else json.dumps(value, ensure_ascii=False)


def text_of(value: Any) -> str:
    """A value as text; ``?`` where it is unknown."""
    return "?" if value is None else str(value)


def _encode(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(type(value).__name__)
