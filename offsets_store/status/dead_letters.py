"""
Read the rows that were put aside instead of published, and why.

Runs where a user or a program asks. Invariant: it only reads, in a transaction that the caller owns.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Text,
    any_,
    cast,
    literal,
    null,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY

from ..ledger.tables import dead_letters


@dataclass(frozen=True)
class StoredLetter:
    """
    One row that was put aside. ``target`` is the table that it was for, with its schema.

    ``position`` says where in Kafka it comes from, and ``column_name`` whose value was refused, where these are known.
    ``code`` is an SQLSTATE, or the code of an error of pgonce. ``destination`` is how the row was to be written.
    ``row_data`` is the text of a JSON object: Python's numbers would not hold every decimal that is in it. Of a record
    that could not be decoded there is no row, and ``record_value`` has its value.
    """

    dead_letter_id: int
    query_id: str
    sink_name: str
    batch_id: int
    target: str
    position: Any
    row_data: str
    column_name: str | None
    code: str
    message: str
    destination: Any
    made_at: datetime
    record_value: bytes | None = None

    @property
    def row_or_record(self) -> str:
        """The row; of a record that could not be decoded its value, in which bytes that are no UTF-8 are escaped."""
        record = self.record_value
        return self.row_data if record is None else record.decode(errors="backslashreplace")


Key = tuple[str, str]
"""A writer: the query's id, and its sink's name."""


def letters_of(
    writers: Collection[Key],
    *,
    ids: Collection[int] = (),
    code: str | None = None,
    with_rows: bool = True,
    newest: int | None = None,
) -> Select[Any]:
    """
    What asks for all dead letters of these writers; for those with one of ``ids``, or with ``code``, if given.

    They come in the order in which they were made; or only the ``newest``, at most so many, the newest first.

    :param with_rows: False to leave ``row_data`` and ``record_value`` empty: rows may be large, and there may be many.
    """
    large = {
        "row_data": cast(dead_letters.c.row_data, Text) if with_rows else literal("", Text),
        "record_value": dead_letters.c.record_value if with_rows else null(),
    }
    others = [dead_letters.c[field.name] for field in fields(StoredLetter) if field.name not in large]
    chosen = select(*(what.label(name) for name, what in large.items()), *others).where(
        tuple_(dead_letters.c.query_id, dead_letters.c.sink_name).in_(writers)
    )
    if ids:
        chosen = chosen.where(one_of(dead_letters.c.dead_letter_id, ids))
    if code is not None:
        chosen = chosen.where(dead_letters.c.code == code)
    number = dead_letters.c.dead_letter_id
    return chosen.order_by(number) if newest is None else chosen.order_by(number.desc()).limit(newest)


def one_of(column: ColumnElement[int], ids: Iterable[int]) -> ColumnElement[bool]:
    """Whether a column has one of these values: one parameter, because a statement takes 65,535 at most."""
    return column == any_(literal(list(ids), ARRAY(BigInteger)))


def as_letters(connection: Connection, chosen: Select[Any]) -> list[StoredLetter]:
    """The letters that a statement of :func:`letters_of` finds."""
    return [StoredLetter(**row) for row in connection.execute(chosen).mappings()]
