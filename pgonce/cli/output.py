"""
How do answers, and the values in them, look as text?

Runs in the command ``pgonce``. Invariant: each line that is printed is one line, whatever is in it, and nothing that
came from outside makes the terminal obey or hide anything; what is unknown reads ``?``, and null in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import typer

from pgonce.offsets_store.offsets.compare import Offsets, is_kafka
from pgonce.offsets_store.shown import one_line


def print_lines(lines: Iterable[str]) -> None:
    """Lines of text on stdout."""
    typer.echo("\n".join(map(one_line, lines)))


def print_error(text: str) -> None:
    """An error's text on stderr."""
    typer.echo(one_line(text), err=True)


def print_json(answer: Any) -> None:
    """One JSON document on stdout."""
    typer.echo(json.dumps(answer, indent=2, default=_encode))


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


def tables_text(tables: Mapping[str, int] | None) -> str:
    """How many rows went into each table, a line each; empty where they all went into one."""
    if not tables or len(tables) < 2:  # noqa: PLR2004 (one table is the one that the sink names)
        return ""
    return "\n".join(one_line(f"{count} into {table}") for table, count in tables.items())


def counts_text(counts: Mapping[str, int] | None) -> str:
    """What became of a batch's rows, one line for each outcome that any row had."""
    return "\n".join(
        one_line(f"{count} {outcome.replace('_', ' ')}") for outcome, count in (counts or {}).items() if count
    )


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
