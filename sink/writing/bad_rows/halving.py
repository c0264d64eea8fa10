"""
Find the rows that are refused in their turn, by halves and in one statement: no round trip for each try.

Runs in the commit, only once Postgres has refused rows, and there in a function in PL/pgSQL, which the rollback to the
savepoint removes. Invariant: what fits stays until all is found, so that the next rows are tried with it; then all is
undone. An error that is not about a row's values ends the search, and is raised.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

from ..bad_row import BadRow, refused_as
from ..rows import GatheredRows

# Operators, functions and types are qualified, because the user's search_path is in force: triggers of the target run.
_FUNCTION = """
CREATE TEMPORARY TABLE pgonce_refused (
    number pg_catalog.int8, place pg_catalog.text, code pg_catalog.text, message pg_catalog.text,
    detail pg_catalog.text, column_name pg_catalog.text
) ON COMMIT DROP;
CREATE INDEX ON pg_temp.pgonce_places (number);
CREATE FUNCTION pg_temp.pgonce_try(
    statement pg_catalog.text, checks pg_catalog.text, first pg_catalog.int8, last pg_catalog.int8,
    most pg_catalog.int8, tries pg_catalog.int8, ends pg_catalog.timestamptz
) RETURNS pg_catalog.int8 LANGUAGE plpgsql AS $body$
DECLARE
    begins pg_catalog.tid;
    reaches pg_catalog.tid;
    code pg_catalog.text;
    message pg_catalog.text;
    detail pg_catalog.text;
    of_column pg_catalog.text;
    of_constraint pg_catalog.text;
    of_table pg_catalog.text;
    of_type pg_catalog.text;
    middle pg_catalog.int8;
    made pg_catalog.int8;
BEGIN
    IF tries OPERATOR(pg_catalog.<=) 0 OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>) ends
       OR (SELECT pg_catalog.count(*) FROM pg_temp.pgonce_refused) OPERATOR(pg_catalog.>) most THEN
        RETURN 0;
    END IF;
    SELECT p.place INTO begins FROM pg_temp.pgonce_places AS p WHERE p.number OPERATOR(pg_catalog.=) first;
    SELECT p.place INTO reaches FROM pg_temp.pgonce_places AS p WHERE p.number OPERATOR(pg_catalog.=) last;
    BEGIN
        EXECUTE statement USING begins, reaches;
        IF checks OPERATOR(pg_catalog.<>) '' THEN
            EXECUTE checks;
        END IF;
        RETURN 1;
    EXCEPTION WHEN OTHERS THEN
        GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            of_column = COLUMN_NAME, of_constraint = CONSTRAINT_NAME, of_table = TABLE_NAME,
            of_type = PG_DATATYPE_NAME;
        -- As kind_of tells them from errors that are not about a row.
        IF NOT (CASE
            WHEN pg_catalog.left(code, 2) OPERATOR(pg_catalog.=) '22'
                THEN code OPERATOR(pg_catalog.<>) ALL (ARRAY['2200H', '22P03', '22P04'])
            WHEN code OPERATOR(pg_catalog.=) ANY (ARRAY['23502', '23514']) AND of_type OPERATOR(pg_catalog.<>) ''
                THEN true
            WHEN code OPERATOR(pg_catalog.=) '23502'
                THEN of_table OPERATOR(pg_catalog.<>) '' AND of_column OPERATOR(pg_catalog.<>) ''
            ELSE code OPERATOR(pg_catalog.=) ANY (ARRAY['23514', '23505', '23503', '23P01'])
                AND of_table OPERATOR(pg_catalog.<>) '' AND of_constraint OPERATOR(pg_catalog.<>) ''
        END) THEN
            RAISE;
        END IF;
    END;
    IF first OPERATOR(pg_catalog.=) last THEN
        INSERT INTO pg_temp.pgonce_refused VALUES (first, begins::pg_catalog.text, code, message, detail, of_column);
        RETURN 1;
    END IF;
    middle := (first OPERATOR(pg_catalog.+) last) OPERATOR(pg_catalog./) 2;
    made := 1 OPERATOR(pg_catalog.+) pg_temp.pgonce_try(
        statement, checks, first, middle, most, tries OPERATOR(pg_catalog.-) 1, ends);
    RETURN made OPERATOR(pg_catalog.+) pg_temp.pgonce_try(
        statement, checks, middle OPERATOR(pg_catalog.+) 1, last, most, tries OPERATOR(pg_catalog.-) made, ends);
END $body$
"""
_PLACES = (
    "CREATE TEMPORARY TABLE pgonce_places ON COMMIT DROP AS "
    "SELECT pg_catalog.row_number() OVER (ORDER BY ctid) AS number, ctid AS place FROM {} WHERE {}"
)
_TRY_ALL = """
SELECT pg_temp.pgonce_try({statement}, {checks}, 1, pg_catalog.max(number), {most}, {tries},
    pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => {seconds}))
FROM pg_temp.pgonce_places
"""

BETWEEN = sql.SQL("ctid OPERATOR(pg_catalog.>=) $1 AND ctid OPERATOR(pg_catalog.<=) $2")
"""The condition that picks the rows of one try, in the statement that writes them."""


def refused_by_halves(
    connection: psycopg.Connection,
    gathered: GatheredRows,
    statement: sql.Composable,
    checks: sql.Composable,
    most: int,
    bounds: tuple[int, float],
) -> tuple[int, list[BadRow]] | None:
    """
    How many tries were made, and the rows that are refused; where these are more than ``most``, some of them.

    None where this role may not create a temporary table, or a function in PL/pgSQL.

    :param statement: writes the rows that are :data:`BETWEEN` two places.
    :param checks: checks deferred constraints; may be empty.
    :param bounds: how many tries there may be, and how many seconds.
    :raises psycopg.Error: what Postgres says that is not about the values of a row.
    """
    with connection.transaction() as all_of_it:
        try:
            with connection.transaction():
                connection.execute(sql.SQL(_PLACES).format(gathered.source, gathered.wanted), prepare=False)
                connection.execute(_FUNCTION, prepare=False)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedObject):
            # The second where PL/pgSQL was dropped.
            return None
        tries, seconds = bounds
        asked = sql.SQL(_TRY_ALL).format(
            statement=sql.Literal(statement.as_string(connection)),
            checks=sql.Literal(checks.as_string(connection)),
            most=most,
            tries=tries,
            seconds=seconds,
        )
        made = connection.execute(asked, prepare=False).fetchone()
        found = connection.execute(
            "SELECT place, code, message, detail, column_name FROM pg_temp.pgonce_refused ORDER BY number"
        ).fetchall()
        raise psycopg.Rollback(all_of_it)
    return (made[0] if made else 0) or 0, [refused_as(*row) for row in found]
