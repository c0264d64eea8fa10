"""
A gathered row that cannot be written, and the rows that are left without such ones.

Pure; runs in the commit. Invariant: a gathered row is known by its place (``ctid``), which it keeps for as long as the
table in which it was gathered is there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres.refused_rows import shortened


@dataclass(frozen=True)
class BadRow:
    """
    A row at ``place``, and why it is refused: an SQLSTATE or a code of ours, the message, the column if it is known.

    ``is_proven`` says that the row is refused whatever else is in the table.
    """

    place: str
    code: str
    message: str
    column_name: str | None = None
    is_proven: bool = False


class RowsRefusedError(Exception):
    """
    Rows of a batch were found to be the reason why it cannot be written; nothing is known of the other rows.

    :param error: what is raised if no row may be put aside.
    """

    def __init__(self, error: psycopg.Error | TargetError, rows: Sequence[BadRow]) -> None:
        super().__init__(error, rows)
        self.error = error
        self.rows = rows


def refused_by(error: psycopg.Error | TargetError, place: str, *, is_proven: bool = False) -> BadRow:
    """The row at ``place``, of which Postgres, or we, say ``error``."""
    if isinstance(error, TargetError):
        return BadRow(place, error.code, error.what, is_proven=is_proven)
    diag = error.diag
    message = diag.message_primary or str(error)
    # Other details have the whole row, which an error must not show; the letter has it anyhow.
    if diag.message_detail and diag.message_detail.startswith("Key "):
        message = f"{message} ({diag.message_detail})"
    return BadRow(place, error.sqlstate or "", shortened(message), diag.column_name, is_proven)


def at(*places: str) -> sql.Composable:
    """The condition that picks the rows at these places."""
    values = sql.SQL(", ").join(sql.SQL("{}::pg_catalog.tid").format(sql.Literal(place)) for place in places)
    return sql.SQL("ctid OPERATOR(pg_catalog.=) ANY (ARRAY[{}])").format(values)


def up_to(place: str) -> sql.Composable:
    """The condition that picks this row and those before it."""
    return sql.SQL("ctid OPERATOR(pg_catalog.<=) {}::pg_catalog.tid").format(sql.Literal(place))


def after(place: str) -> sql.Composable:
    """The condition that picks the rows behind this one."""
    return sql.SQL("ctid OPERATOR(pg_catalog.>) {}::pg_catalog.tid").format(sql.Literal(place))


def without(places: Collection[str]) -> sql.Composable:
    """The condition that leaves out the rows at these places."""
    if not places:
        return sql.SQL("true")
    # A subquery is hashed; of an array each element would be compared with each row.
    values = sql.SQL(", ").join(sql.SQL("({}::pg_catalog.tid)").format(sql.Literal(place)) for place in places)
    return sql.SQL("NOT (ctid OPERATOR(pg_catalog.=) ANY (VALUES {}))").format(values)


FIRST = "(0,0)"
"""A place before every row."""
