"""
Find columns of the table that are too narrow for values of the batch, and widen them.

Runs in the commit. Invariant: a column is widened only after Postgres has refused a value as too long or too large for
it, so that a batch that fits alters nothing. Rows that were written before are rolled back, and written again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol, TypeVar

import psycopg
from psycopg import sql

from pgonce.offsets_store.errors import NotAlteredError, TargetError
from pgonce.offsets_store.postgres import search_path

from ...encoding.encoded_types import EncodedColumn
from ...options.destination import Destination
from ..bad_row import may_be_a_rows
from ..rows import Gathering, whole_or_failed
from ..table.catalogue import TargetColumn, TargetTable, look_up_table
from .alter import refuse_what_stands_in_the_way
from .new_columns import changes_for, is_limited

_BEFORE = "SAVEPOINT pgonce_narrow"
_KEEP = "RELEASE SAVEPOINT pgonce_narrow"
_BACK = "ROLLBACK TO SAVEPOINT pgonce_narrow"

_TOO_NARROW = (psycopg.errors.StringDataRightTruncation, psycopg.errors.NumericValueOutOfRange)


T_co = TypeVar("T_co", covariant=True)


class Write(Protocol[T_co]):
    """Writes all rows to a table whose columns ``too_narrow`` are widened."""

    def __call__(self, too_narrow: Collection[str] = ..., *, may_divert: bool = ...) -> T_co:
        """Write them; ``may_divert`` says whether what does not fit may be put aside."""


def written_to_wider(
    connection: psycopg.Connection,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    gathering: Gathering,
    write: Write[T_co],
) -> T_co:
    """
    What ``write`` returns; if Postgres refuses a value as too large, it is called again for wider columns.

    Rows are put aside as dead letters only at the second time, because a wider column may take them; so are those for
    which a column cannot be widened.

    :param write: takes the columns of the rows that are too narrow in the table.
    """
    connection.execute(_BEFORE)
    try:
        done = write((), may_divert=False)
    except (psycopg.Error, TargetError) as error:
        diverts = destination.dead_letters is not None and may_be_a_rows(error)
        if not diverts and not isinstance(error, _TOO_NARROW):
            raise
        connection.execute(_BACK)
        gathering.undone()
        with whole_or_failed(connection):
            names = _too_narrow(connection, destination, encoded, gathering(), gathering.wanted)
            if diverts:
                names = _that_may_be_widened(connection, destination, encoded, names)
            elif not names:
                raise
            try:
                done = write(names)
            except NotAlteredError:
                if not (diverts and names):
                    raise
                # Only Postgres knew that. The values that are too large are put aside, as without addColumns.
                connection.execute(_BACK)
                gathering.undone()
                done = write(())
    connection.execute(_KEEP)
    return done


def _that_may_be_widened(
    connection: psycopg.Connection, destination: Destination, encoded: Sequence[EncodedColumn], names: Collection[str]
) -> frozenset[str]:
    """The columns that may be altered, as far as the catalogue tells."""
    _, table = look_up_table(connection, destination.table)
    return frozenset(name for name in names if table and _may_be_widened(connection, table, destination, encoded, name))


def _may_be_widened(
    connection: psycopg.Connection,
    table: TargetTable,
    destination: Destination,
    encoded: Sequence[EncodedColumn],
    name: str,
) -> bool:
    changes = changes_for(table, [column for column in encoded if column.name == name], destination, (name,))
    try:
        refuse_what_stands_in_the_way(connection, table, changes)
    except TargetError:
        return False
    return True


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
        found = table.columns_named(column.name) if table else []
        if len(found) == 1 and is_limited(found[0]):
            limited[column.name] = found[0]
    if not limited:
        return frozenset()
    tests = sql.SQL(", ").join(_has_larger(name, column) for name, column in limited.items())
    cursor = connection.cursor()
    try:
        with connection.transaction():
            search_path.execute_in_tx(cursor, sql.SQL("SELECT {} FROM {} WHERE {}").format(tests, source, wanted))
            answers = cursor.fetchone() or ()
    except psycopg.DataError:
        # A value cannot even be read as the column's type: the batch's own error says more about that.
        return frozenset()
    return frozenset(name for name, is_larger in zip(limited, answers, strict=True) if is_larger)


def _has_larger(name: str, column: TargetColumn) -> sql.Composed:
    """Whether there is a value in the rows that the column refuses."""
    first, *others = (int(part) for part in column.full_type.partition("(")[2].rstrip(")").split(","))
    if column.base_type == "numeric":
        test = "bool_or(abs(round({}::numeric, {})) >= 10::numeric ^ {})"
        return sql.SQL(test).format(sql.Identifier(name), others[0], first - others[0])
    if column.base_type == "bit varying":
        # A text that is not a bit string is refused, however wide the column is; others may yet need a wider one.
        test = "bool_or(CASE WHEN {0}::text ~ '^([bB]?[01]*|[xX][0-9a-fA-F]*)$' THEN length({0}::varbit) > {1} END)"
        return sql.SQL(test).format(sql.Identifier(name), first)
    # Spaces past the end of a varchar(n) are cut, as the SQL standard says.
    return sql.SQL("bool_or(char_length(rtrim({}::text, ' ')) > {})").format(sql.Identifier(name), first)
