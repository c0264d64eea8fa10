"""
Rows that were put aside, as rows of a batch again.

Runs in a replay. Invariant: Postgres reads each value from its JSON as the type in which the column is encoded, and
nothing else is made of it: what cannot be read so is an error that names the letter and the column.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgonce.dead_letters.chosen_letters import shown_ids
from pgonce.offsets_store.errors import UNCHANGED, RecoveryError
from pgonce.offsets_store.postgres.refused_rows import shortened
from pgonce.sink.encoding.arrow_forms import UNFIT_CODES
from pgonce.sink.encoding.copy_encoder import HEADER, TRAILER, body_rows
from pgonce.sink.encoding.encoded_types import EncodedColumn
from pgonce.sink.writing.rows import Rows


def only(rows: Rows, numbers: Sequence[int]) -> Rows:
    """Those of these numbers, from 0, in this order."""
    body = b"".join(rows.bodies())
    places = list(body_rows(memoryview(body)))
    return _mended(rows.columns, len(numbers), b"".join(body[slice(*places[n])] for n in numbers))


def _mended(columns: tuple[EncodedColumn, ...], number: int, body: bytes) -> Rows:
    return Rows(columns, lambda: number, lambda: [body], "replayed")


def mended_rows_in_tx(
    connection: psycopg.Connection,
    ids: Sequence[int],
    columns: tuple[EncodedColumn, ...],
    deleted: str | None = None,
) -> Rows:
    """
    The rows of these letters, in the order of their ids, under our search_path.

    :param deleted: the column that says whether a row deletes, if rows may.
    :raises RecoveryError: DEAD_LETTER_UNMENDED, naming the letter and the column whose value cannot be read.
    """
    _refuse_unreadable(connection, ids, columns, deleted)
    statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(_selected(ids, columns))
    try:
        with connection.transaction(), connection.cursor() as cursor, cursor.copy(statement) as copy:
            body = b"".join(copy)
    except psycopg.DataError as error:
        _refuse_first(connection, ids, columns)
        # Each value by itself can be read, so it is not for a value that the rows cannot.
        raise error from None
    return _mended(columns, len(ids), body[len(HEADER) : -len(TRAILER)])


def ranked_in_tx(
    connection: psycopg.Connection, ids: Sequence[int], by: Sequence[EncodedColumn]
) -> list[tuple[int, int]]:
    """
    The ids of these letters in the order of their changes, under our search_path. Their rows can be read.

    Each has a number that grows with the order; letters of one order have the same.

    :param by: the columns that say which change is the later one: the greater value; of booleans, false.
    """
    if not by:
        return [(one, number) for number, one in enumerate(ids)]
    order = [
        sql.SQL("{} DESC" if column.postgres_type == "bool" else "{} NULLS FIRST").format(
            sql.Identifier("data", column.name)
        )
        for column in by
    ]
    ordered = sql.SQL(", ").join(order)
    rank = sql.SQL("letter.dead_letter_id, pg_catalog.dense_rank() OVER (ORDER BY {})").format(ordered)
    query = sql.SQL("{} ORDER BY {}, letter.dead_letter_id").format(_read(ids, by, rank), ordered)
    return connection.execute(query, prepare=False).fetchall()


def _read(ids: Sequence[int], columns: Sequence[EncodedColumn], what: sql.Composable) -> sql.Composed:
    """Select something of these letters, each of which has its row's values, read as these columns, as ``data``."""
    return sql.SQL(
        "SELECT {} FROM pgonce.dead_letters AS letter, "
        "LATERAL pg_catalog.jsonb_to_record(letter.row_data) AS data ({}) WHERE letter.dead_letter_id = ANY ({})"
    ).format(
        what,
        sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column.name), _read_as(column)) for column in columns
        ),
        _literal(ids),
    )


def _selected(ids: Sequence[int], columns: Sequence[EncodedColumn]) -> sql.Composed:
    values = sql.SQL(", ").join(map(_value, columns))
    return sql.SQL("{} ORDER BY letter.dead_letter_id").format(_read(ids, columns, values))


def _read_as(column: EncodedColumn) -> sql.SQL:
    return sql.SQL("jsonb" if column.postgres_type == "bytea" else column.postgres_type)


def _value(column: EncodedColumn) -> sql.Composable:
    name = sql.Identifier("data", column.name)
    if column.postgres_type != "bytea":
        return name
    # Bytes are what base64 is for; a text has them as Postgres writes them.
    return sql.SQL(
        "CASE pg_catalog.jsonb_typeof({name}) WHEN 'object' THEN pg_catalog.decode({name} ->> 'base64', 'base64') "
        "ELSE ({name} #>> '{{}}')::bytea END"
    ).format(name=name)


def _literal(ids: Sequence[int]) -> sql.Composable:
    return sql.SQL("ARRAY[{}]::bigint[]").format(sql.SQL(", ").join(map(sql.Literal, ids)))


def _refuse_unreadable(
    connection: psycopg.Connection,
    ids: Sequence[int],
    columns: Sequence[EncodedColumn],
    deleted: str | None,
) -> None:
    """Refuse values that Postgres would silently take for a text or for null, and a row that may delete or not."""
    known = sql.SQL(", ").join(
        sql.SQL("({}, {}, {})").format(number, sql.Literal(column.name), sql.Literal(_kind(column, deleted)))
        for number, column in enumerate(columns)
    )
    codes = sql.SQL("ARRAY[{}]").format(sql.SQL(", ").join(map(sql.Literal, UNFIT_CODES)))
    query = sql.SQL(_UNMENDED).format(columns=known, ids=_literal(ids), codes=codes)
    found = connection.execute(query, prepare=False).fetchall()
    if found:
        letter, number, shape = found[0]
        what = _WHAT.get(shape, "is still an object (or an array) in row_data")
        others = list(dict.fromkeys(other for other, *_ in found if other != letter))
        raise _unmended(letter, columns[number], what, others)


def _kind(column: EncodedColumn, deleted: str | None) -> str:
    if column.name == deleted:
        return "deletes"
    if column.postgres_type.endswith("[]"):
        return "array"
    return column.postgres_type if column.postgres_type in ("bytea", "jsonb") else "scalar"


_WHAT = {
    "missing": "is missing in row_data",
    # Such a row would be neither written nor deleted.
    "null": "is null in row_data, and does not say whether the row deletes: it has to be true or false",
}
_UNMENDED = """
SELECT letter.dead_letter_id, known.number, coalesce(jsonb_typeof(of_column.value), 'missing')
FROM pgonce.dead_letters AS letter
CROSS JOIN (VALUES {columns}) AS known (number, name, kind)
CROSS JOIN LATERAL (SELECT letter.row_data -> known.name) AS of_column (value)
CROSS JOIN LATERAL (
    SELECT CASE jsonb_typeof(value) WHEN 'object'
           THEN value <> '{{}}' AND value - '{{base64,json,arrow}}'::text[] = '{{}}'
                AND NOT jsonb_path_exists(value, '$.* ? (@.type() != "string")') END
) AS encoded (is_that)
WHERE letter.dead_letter_id = ANY ({ids})
  AND (value IS NULL OR CASE known.kind
       WHEN 'bytea' THEN jsonb_typeof(value) = 'object' AND NOT (is_that AND value ? 'base64')
       WHEN 'jsonb' THEN is_that IS TRUE AND NOT value ? 'base64' AND letter.code = ANY ({codes})
       WHEN 'deletes' THEN jsonb_typeof(value) IN ('object', 'array', 'null')
       WHEN 'array' THEN jsonb_path_exists(value, 'strict $.** ? (@.type() == "object")', '{{}}', true)
       ELSE jsonb_typeof(value) IN ('object', 'array') END)
ORDER BY letter.dead_letter_id, known.number
"""
"""
For our search_path. A key can be taken out of an object only: from another value, that is an error. Only a row that
could not be encoded has such an object in the place of a value; in others it may be the value itself. A text alone is
replaced by its bytes, so ``base64`` in JSON is always the value itself.
"""


def _refuse_first(connection: psycopg.Connection, ids: Sequence[int], columns: Sequence[EncodedColumn]) -> None:
    """Refuse the first value that Postgres cannot read; each is tried by itself."""
    for one in ids:
        for column in columns:
            try:
                with connection.transaction():
                    connection.execute(_selected([one], [column]), prepare=False)
            except psycopg.DataError as error:
                why = f"cannot be read as {column.postgres_type}: {shortened(error.diag.message_primary or '')}"
                raise _unmended(one, column, why) from None


def _unmended(letter: int, column: EncodedColumn, what: str, others: Sequence[int] = ()) -> RecoveryError:
    # As a value of JSON in a literal of SQL; the key is part of an array's literal.
    path = sql.Literal([column.name]).as_string(None)
    more = ""
    if others:
        more = f" Other dead letters have such values too: {shown_ids(others)}."
    return RecoveryError(
        "DEAD_LETTER_UNMENDED",
        f"The value of column {column.name!r} in dead letter {letter} {what}.{more}",
        UNCHANGED,
        f"Repair it: UPDATE pgonce.dead_letters SET row_data = jsonb_set(row_data, {path}, '\"...\"') WHERE "
        f"dead_letter_id = {letter}; with the value as JSON in the place of the three dots. Or choose other letters "
        "with --id. (Page `dead-letters` of the documentation.)",
    )
