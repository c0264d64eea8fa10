"""
Guess which rows a unique index or a foreign key of the target refuses.

Runs in the commit. Invariant: each guess is tried on the target itself. Nothing depends on finding all of these rows,
or any.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ..bad_row import FOREIGN_KEY, UNIQUE, BadRow, ask_about, unique_columns
from ..by_key.keys import Written
from ..by_key.statements import (
    that_write,
    value_of,
)
from ..rows import GatheredRows


def conflicting_rows(
    connection: psycopg.Connection, error: psycopg.Error, gathered: GatheredRows, written: Written, most: int
) -> list[BadRow]:
    """
    The gathered rows that break the constraint which ``error`` names, as far as its columns tell.

    :param most: how many are enough.
    """
    find = _SEARCHES.get(error.sqlstate or "")
    # By key, a row may replace the one that it seems to conflict with.
    if find is None or (find is _doubled and written.upsert is not None):
        return []
    if written.changes is not None:
        gathered = gathered.only(that_write(written.changes))
    try:
        with connection.transaction():
            query = find(connection, error, gathered, written)
            if query is None:
                return []
            cursor = connection.cursor()
            limited = sql.SQL("SELECT place::text AS at FROM ({}) AS found ORDER BY place LIMIT {}").format(query, most)
            search_path.execute_in_tx(cursor, limited)
            places = [row[0] for row in cursor.fetchall()]
    except (psycopg.errors.DataError, psycopg.errors.ProgrammingError):
        # Types without an equality of Postgres's own; a table that the role may not read.
        return []
    message = error.diag.message_primary or ""
    return [BadRow(place, error.sqlstate or "", message) for place in places]


def _doubled(
    connection: psycopg.Connection, error: psycopg.Error, gathered: GatheredRows, written: Written
) -> sql.Composable | None:
    """The rows whose key is stored, and of those that share a key, all but the first."""
    names = unique_columns(connection, error)
    rows = names and _keys(gathered, written, names)
    if not rows:
        return None
    keys = [sql.Identifier(name) for name in names]
    return sql.SQL(
        "SELECT place FROM (SELECT s.*, row_number() OVER (PARTITION BY {keys} ORDER BY place) AS number "
        "FROM ({rows}) AS s) AS s WHERE number > 1 OR EXISTS (SELECT FROM {table} AS target WHERE {same})"
    ).format(
        keys=sql.SQL(", ").join(keys),
        rows=rows,
        table=written.table.identifier,
        same=sql.SQL(" AND ").join(sql.SQL("target.{0} = s.{0}").format(key) for key in keys),
    )


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
