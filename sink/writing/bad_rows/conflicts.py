"""
Find the gathered rows that the target refuses because of other rows: those it has, or those before them in the batch.

Runs in the commit, only once Postgres has refused rows. Invariant: whatever is tried here is undone. Which rows a
constraint refuses is first guessed by one statement, and nothing depends on finding all of these rows, or any: each
is tried on the target afterwards.

What only the target itself can tell (a trigger, a deferred constraint) is tried in a function in PL/pgSQL, by halves or
one by one, with no round trip for each try. What fits stays until all is found, so that the next rows are tried with
it. An error that is not about a row's values ends the search, and is raised.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from ..bad_row import (
    FOREIGN_KEY,
    IS_ABOUT_A_ROW,
    UNIQUE,
    BadRow,
    SearchBound,
    ask_about,
    refused_as,
)
from ..by_key.keys import Written
from ..by_key.statements import insert_statement, that_write, value_of
from ..by_key.unique_index import guessed, unique_index
from ..rows import GatheredRows


def skipped_rows(
    connection: psycopg.Connection, error: psycopg.Error, gathered: GatheredRows, written: Written, most: int
) -> list[BadRow]:
    """
    The gathered rows that ON CONFLICT DO NOTHING leaves out, whatever index or exclusion constraint refuses them.

    :param most: how many are enough.
    :raises psycopg.Error: what Postgres says of other rows; and if a constraint is deferrable, which ON CONFLICT does
        not take.
    """
    with connection.transaction() as tried:
        query = sql.SQL(_SKIPPED).format(
            table=written.table.identifier,
            names=sql.SQL(", ").join(sql.Identifier(column.target) for column in written.plan),
            values=sql.SQL(", ").join(
                sql.SQL("{} AS {}").format(value_of(column), sql.Identifier(column.target)) for column in written.plan
            ),
            source=gathered.source,
            wanted=gathered.wanted,
            most=most,
        )
        places = [row[0] for row in connection.execute(query, prepare=False).fetchall()]
        raise psycopg.Rollback(tried)
    return [BadRow(place, error.sqlstate or "", error.diag.message_primary or "") for place in places]


# A row is read, written and returned before the next one is read, so that the setting has the place of the row which is
# returned. The user's search_path is in force, because triggers of the target run.
_SKIPPED = """
WITH written AS (
    INSERT INTO {table} ({names}) SELECT {names} FROM (
        SELECT pg_catalog.set_config('pgonce.place', ctid::pg_catalog.text, true) AS "pgonce: place", {values}
        FROM {source} WHERE {wanted}) AS s
    ON CONFLICT DO NOTHING RETURNING pg_catalog.current_setting('pgonce.place')::pg_catalog.tid AS place)
SELECT given.place::pg_catalog.text FROM (SELECT ctid AS place FROM {source} WHERE {wanted}) AS given
WHERE NOT EXISTS (SELECT FROM written WHERE written.place OPERATOR(pg_catalog.=) given.place)
ORDER BY given.place LIMIT {most}
"""


def conflicting_rows(
    connection: psycopg.Connection, error: psycopg.Error, gathered: GatheredRows, written: Written, most: int
) -> list[BadRow]:
    """
    The gathered rows that break the constraint which ``error`` names, as far as its columns tell.

    :param most: how many are enough.
    """
    find = _SEARCHES.get(error.sqlstate or "")
    if find is None:
        return []
    if written.changes is not None:
        gathered = gathered.only(that_write(written.changes))
    query = find(connection, error, gathered, written)
    if query is None:
        return []
    limited = sql.SQL("SELECT place::text AS at FROM ({}) AS found ORDER BY place LIMIT {}").format(query, most)
    message = error.diag.message_primary or ""
    return [BadRow(place, error.sqlstate or "", message) for (place,) in guessed(connection, limited) or ()]


def _doubled(
    connection: psycopg.Connection, error: psycopg.Error, gathered: GatheredRows, written: Written
) -> sql.Composable | None:
    index = unique_index(connection, written, error)
    return index.doubled(gathered) if index else None


def _without_parent(
    connection: psycopg.Connection, error: psycopg.Error, gathered: GatheredRows, written: Written
) -> sql.Composable | None:
    """The rows that refer to a row which is neither stored nor among those of the batch."""
    pairs = ask_about(connection, _REFERENCE, error)
    rows = pairs and _keys(gathered, written, [name for name, *_ in pairs])
    if not rows:
        return None
    schema, name, refers_to_itself = pairs[0][2:]
    same = sql.SQL(" AND ").join(
        sql.SQL("parent.{} = s.{}").format(sql.Identifier(parent), sql.Identifier(child)) for child, parent, *_ in pairs
    )
    found = sql.SQL("SELECT place FROM ({}) AS s WHERE NOT EXISTS (SELECT FROM {} AS parent WHERE {})").format(
        rows, sql.Identifier(schema, name), same
    )
    parents = refers_to_itself and _keys(gathered, written, [parent for _, parent, *_ in pairs])
    if not parents:
        return found
    return sql.SQL("{} AND NOT EXISTS (SELECT FROM ({}) AS parent WHERE {})").format(found, parents, same)


_SEARCHES = {UNIQUE: _doubled, FOREIGN_KEY: _without_parent}


def _keys(gathered: GatheredRows, written: Written, names: Sequence[str]) -> sql.Composable | None:
    """The places of the rows and these columns of the target; None if the rows do not bring all of them."""
    plan = {column.target: column for column in written.plan}
    if not plan.keys() >= set(names):
        return None
    values = (sql.SQL("{} AS {}").format(value_of(plan[name]), sql.Identifier(name)) for name in names)
    present = (sql.SQL("{} IS NOT NULL").format(sql.Identifier(plan[name].source)) for name in names)
    return sql.SQL("SELECT ctid AS place, {} FROM {} WHERE {} AND {}").format(
        sql.SQL(", ").join(values), gathered.source, gathered.wanted, sql.SQL(" AND ").join(present)
    )


_REFERENCE = """
SELECT child.attname, parent.attname, n.nspname, p.relname, p.oid = t.oid
FROM pg_class AS t JOIN pg_constraint AS c ON c.conrelid = t.oid AND c.contype = 'f'
JOIN pg_class AS p ON p.oid = c.confrelid JOIN pg_namespace AS n ON n.oid = p.relnamespace
CROSS JOIN unnest(c.conkey, c.confkey) AS k(child, parent)
JOIN pg_attribute AS child ON child.attrelid = t.oid AND child.attnum = k.child
JOIN pg_attribute AS parent ON parent.attrelid = p.oid AND parent.attnum = k.parent
WHERE t.relnamespace::regnamespace::text = quote_ident({}) AND t.relname = {} AND c.conname = {}
"""


# Operators, functions and types are qualified, because the user's search_path is in force: triggers of the target run.
_FUNCTION = """
CREATE TEMPORARY TABLE pgonce_refused (
    number pg_catalog.int8, place pg_catalog.text, code pg_catalog.text, message pg_catalog.text,
    detail pg_catalog.text, column_name pg_catalog.text
) ON COMMIT DROP;
CREATE INDEX ON pg_temp.pgonce_places (number);
CREATE FUNCTION pg_temp.pgonce_try(
    checks pg_catalog.text, by_halves pg_catalog.bool, most pg_catalog.int8, tries pg_catalog.int8,
    ends pg_catalog.timestamptz
) RETURNS pg_catalog.int8 LANGUAGE plpgsql AS {body}
"""
# The statement is a part of it, so that it is planned once and not for each try.
_BODY = """
#variable_conflict use_column
DECLARE
    total pg_catalog.int8 := (SELECT pg_catalog.count(*) FROM pg_temp.pgonce_places);
    first pg_catalog.int8 := 1;
    last pg_catalog.int8;
    size pg_catalog.int8 := total;
    fails_by pg_catalog.int8 := total;
    since pg_catalog.int8 := 1;
    made pg_catalog.int8 := 0;
    refused pg_catalog.int8 := 0;
    fits pg_catalog.bool;
    "pgonce: begins" pg_catalog.tid;
    "pgonce: reaches" pg_catalog.tid;
    code pg_catalog.text;
    message pg_catalog.text;
    detail pg_catalog.text;
    of_column pg_catalog.text;
    of_constraint pg_catalog.text;
    of_table pg_catalog.text;
    of_type pg_catalog.text;
BEGIN
WHILE first OPERATOR(pg_catalog.<=) total AND made OPERATOR(pg_catalog.<) tries
      AND refused OPERATOR(pg_catalog.<=) most AND pg_catalog.clock_timestamp() OPERATOR(pg_catalog.<=) ends LOOP
    -- Of rows that are refused together, one half is tried next.
    IF first OPERATOR(pg_catalog.<=) fails_by THEN
        size := LEAST(size, (fails_by OPERATOR(pg_catalog.-) first OPERATOR(pg_catalog.+) 2) OPERATOR(pg_catalog./) 2);
    END IF;
    IF NOT by_halves THEN
        size := 1;
    END IF;
    last := LEAST(first OPERATOR(pg_catalog.+) size OPERATOR(pg_catalog.-) 1, total);
    SELECT p.place INTO "pgonce: begins" FROM pg_temp.pgonce_places AS p WHERE p.number OPERATOR(pg_catalog.=) first;
    SELECT p.place INTO "pgonce: reaches" FROM pg_temp.pgonce_places AS p WHERE p.number OPERATOR(pg_catalog.=) last;
    made := made OPERATOR(pg_catalog.+) 1;
    BEGIN
        {statement};
        IF checks OPERATOR(pg_catalog.<>) '' THEN
            EXECUTE checks;
        END IF;
        fits := true;
    EXCEPTION WHEN OTHERS THEN
        fits := false;
        GET STACKED DIAGNOSTICS code = RETURNED_SQLSTATE, message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL,
            of_column = COLUMN_NAME, of_constraint = CONSTRAINT_NAME, of_table = TABLE_NAME,
            of_type = PG_DATATYPE_NAME;
        IF NOT {is_about_a_row} THEN
            RAISE;
        END IF;
    END;
    IF fits THEN
        first := last OPERATOR(pg_catalog.+) 1;
        size := size OPERATOR(pg_catalog.*) 2;
    ELSIF first OPERATOR(pg_catalog.=) last THEN
        INSERT INTO pg_temp.pgonce_refused
        VALUES (first, "pgonce: begins"::pg_catalog.text, code, message, detail, of_column);
        refused := refused OPERATOR(pg_catalog.+) 1;
        -- The next bad row may be as far away as this one was, so that at most some times as many rows are written as
        -- there are.
        first := first OPERATOR(pg_catalog.+) 1;
        size := first OPERATOR(pg_catalog.-) since;
        since := first;
        fails_by := 0;
    ELSE
        fails_by := last;
    END IF;
END LOOP;
RETURN made;
END
"""
_PLACES = (
    "CREATE TEMPORARY TABLE pgonce_places ON COMMIT DROP AS "
    "SELECT pg_catalog.row_number() OVER (ORDER BY ctid) AS number, ctid AS place FROM {} WHERE {}"
)
_TRY_ALL = """
SELECT pg_temp.pgonce_try({checks}, {by_halves}, {most}, {tries}, pg_catalog.clock_timestamp()
    OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => {seconds}))
"""
_BETWEEN = sql.SQL('ctid OPERATOR(pg_catalog.>=) "pgonce: begins" AND ctid OPERATOR(pg_catalog.<=) "pgonce: reaches"')


def refused_in_turn(
    connection: psycopg.Connection,
    rows: GatheredRows,
    written: Written,
    checks: sql.Composable,
    bound: SearchBound,
    most: int | None = None,
) -> list[BadRow] | None:
    """
    Those of the rows that are refused when they are added, in their order, to what the target has.

    None where rows are written by key, and where this role may not create a temporary table, or a function in PL/pgSQL.

    :param checks: checks deferred constraints; may be empty.
    :param most: how many there may be: of more, some are returned. Without it, only few rows are given, and each is
        tried by itself, which does not count as a try.
    :raises TargetError: SEARCH_TOO_LONG.
    :raises psycopg.Error: what Postgres says that is not about the values of a row.
    """
    if written.upsert is not None:
        return None
    part = rows.only(_BETWEEN)
    statement = insert_statement(part.source, part.wanted, written.table, written.plan)
    body = sql.SQL(_BODY).format(statement=statement, is_about_a_row=IS_ABOUT_A_ROW)
    with connection.transaction() as all_of_it:
        try:
            with connection.transaction():
                connection.execute(sql.SQL(_PLACES).format(rows.source, rows.wanted), prepare=False)
                connection.execute(sql.SQL(_FUNCTION).format(body=body.as_string(connection)), prepare=False)
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.UndefinedObject):
            # The second where PL/pgSQL was dropped.
            return None
        tries, seconds = bound.left()
        asked = sql.SQL(_TRY_ALL).format(
            checks=sql.Literal(checks.as_string(connection)),
            by_halves=most is not None,
            most=rows.count if most is None else most,
            tries=rows.count if most is None else tries,
            seconds=seconds,
        )
        made = connection.execute(asked, prepare=False).fetchone()
        found = connection.execute(
            "SELECT place, code, message, detail, column_name FROM pg_temp.pgonce_refused ORDER BY number"
        ).fetchall()
        raise psycopg.Rollback(all_of_it)
    bound.refuse_longer(made[0] if made and most is not None else 0)
    return [refused_as(*row) for row in found]
