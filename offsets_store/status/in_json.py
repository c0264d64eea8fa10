"""
Rows of the ledger as JSON: read from what Postgres makes of them, and written for programs.

Pure: runs where the ledger is read. Invariant: a time keeps its zone and its microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

_Row = TypeVar("_Row")
_FRACTION = re.compile(r"\.(\d+)")


def from_json(of: type[_Row], row: Mapping[str, Any]) -> _Row:
    """An object of this dataclass; keys that are no fields of it are left out."""
    values = with_times(of, row)
    return of(**{field.name: values[field.name] for field in fields(of)})  # type: ignore[arg-type]


def with_times(of: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """The row, where the dataclass has a time with that as a time."""
    # The types are texts, because of the annotations' future.
    times = {field.name for field in fields(of) if "datetime" in str(field.type)}
    return {name: time_of(value) if name in times and value is not None else value for name, value in row.items()}


def time_of(in_json: str) -> datetime:
    """
    A time as Postgres writes it into JSON.

    >>> time_of("2026-11-26T02:15:56.5+00:00")
    datetime.datetime(2026, 11, 26, 2, 15, 56, 500000, tzinfo=datetime.timezone.utc)
    """
    # Python 3.10 reads a fraction of three or six digits.
    return datetime.fromisoformat(_FRACTION.sub(lambda found: f".{found[1]:0<6}", in_json))


def encoded(value: object) -> str:
    """What JSON has no form for, as text; for ``json.dumps(default=...)``."""
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(type(value).__name__)
