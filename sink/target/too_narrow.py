"""
Which columns of the table are too narrow for values of the batch, and what then?

Runs in the commit. Invariant: a column is widened only after Postgres has refused a value as too long or too large for
it, so that a batch that fits alters nothing. What was written before is undone, and written again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import TypeVar

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import TargetError
from pgonce.offsets_store.postgres import search_path
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.settings import Destination
from pgonce.sink.target.catalogue import TargetColumn, look_up_table
from pgonce.sink.target.gathering import Gathering
from pgonce.sink.target.new_columns import columns_named
from pgonce.sink.target.widening import is_limited

_BEFORE = "SAVEPOINT pgonce_narrow"
_KEEP = "RELEASE SAVEPOINT pgonce_narrow"
_BACK = "ROLLBACK TO SAVEPOINT pgonce_narrow"
# There is no savepoint of this name, so the transaction fails again: a function that swallows the error must not commit
# without these rows. The server's log shows the name.
_FAIL = 'ROLLBACK TO SAVEPOINT "pgonce: the batch was refused"'

_TOO_NARROW = (psycopg.errors.StringDataRightTruncation, psycopg.errors.NumericValueOutOfRange)


T = TypeVar("T")


def written_to_wider(
    connection: psycopg.Connection,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    gathering: Gathering,
    write: Callable[[Collection[str]], T],
) -> T:
    """
    What ``write`` returns; if Postgres refuses a value as too large, it is called again for wider columns.

    :param write: takes the columns of the rows that are too narrow in the table.
    """
    connection.execute(_BEFORE)
    try:
        done = write(())
    except _TOO_NARROW:
        connection.execute(_BACK)
        gathering.undone()
        try:
            names = _too_narrow(connection, destination, encoded, gathering(), gathering.wanted)
            if not names:
                raise
            done = write(names)
        except (TargetError, *_TOO_NARROW):
            with suppress(psycopg.Error):
                connection.execute(_FAIL)
            raise
    connection.execute(_KEEP)
    return done


def _too_narrow(
    connection: psycopg.Connection,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    source: sql.Identifier,
    wanted: sql.Composable,
) -> frozenset[str]:
    _, table = look_up_table(connection, destination.table)
    limited = {}
    for column in encoded:
        found = columns_named(table, column.name) if table else []
        if len(found) == 1 and is_limited(found[0]):
            limited[column.name] = found[0]
    if not limited:
        return frozenset()
    tests = sql.SQL(", ").join(_has_larger(name, column) for name, column in limited.items())
    cursor = connection.cursor()
    search_path.execute_in_tx(cursor, sql.SQL("SELECT {} FROM {} WHERE {}").format(tests, source, wanted))
    answers = cursor.fetchone() or ()
    return frozenset(name for name, is_larger in zip(limited, answers, strict=True) if is_larger)


def _has_larger(name: str, column: TargetColumn) -> sql.Composed:
    """Whether there is a value in the rows that the column refuses."""
    first, *others = (int(part) for part in column.full_type.partition("(")[2].rstrip(")").split(","))
    if column.base_type == "numeric":
        test = "bool_or(abs(round({}::numeric, {})) >= 10::numeric ^ {})"
        return sql.SQL(test).format(sql.Identifier(name), others[0], first - others[0])
    # Spaces past the end of a varchar(n) are cut, as the SQL standard says.
    length = "length({}::varbit)" if column.base_type == "bit varying" else "char_length(rtrim({}::text, ' '))"
    return sql.SQL(f"bool_or({length} > {{}})").format(sql.Identifier(name), first)
