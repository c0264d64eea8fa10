"""
Compare rows by the values of a unique index: which rows have values that are stored or that an earlier row has, and
which may take a value away from another row.

Runs in the commit, once a unique index has refused rows. Invariant: what is found is a guess, because types may compare
values in another way than their index; the rows are tried afterwards, or the batch is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from pgonce.offsets_store.postgres import search_path

from ..bad_row import ask_about
from ..rows import GatheredRows
from .keys import EQUAL, Written
from .statements import text_as_assigned, that_write

PLACE, _FIRST = sql.Identifier("pgonce: place"), sql.Identifier("pgonce: first")


@dataclass(frozen=True)
class UniqueIndex:
    """
    A unique index, by its ``expressions`` and its ``condition`` ("true" if it has none) as Postgres prints them, and by
    the operators that say which values of each expression are ``equal``.

    They name columns of the table. Where rows do not bring one of these, a query ends with UndefinedColumn. All queries
    are meant to run under our search_path, under which the index was read.
    """

    written: Written
    expressions: Sequence[str]
    equal: Sequence[sql.Composable]
    condition: str

    def doubled(self, gathered: GatheredRows, order: sql.Composable = PLACE) -> sql.Composed:
        """
        The query for the ``place`` of each row whose values are stored, or are those of a row before it.

        A row that is written by key may share them with the stored row of its key, and with other rows of its key.

        :param order: what rows are ordered by; it may ask about the row ``valued``, which has a :data:`PLACE`.
        """
        return sql.SQL(
            "WITH valued AS MATERIALIZED ({valued}), numbered AS (SELECT *, first_value({place}) "
            "OVER (PARTITION BY {values} ORDER BY {order}) AS {first} FROM valued) "
            "SELECT s.{place} AS place FROM numbered AS s JOIN valued AS first ON first.{place} = s.{first} "
            "WHERE s.{place} <> s.{first} AND NOT ({same_key_as_first}) "
            "OR EXISTS (SELECT FROM ({stored}) AS target WHERE {same_values} AND NOT ({same_key}))"
        ).format(
            valued=self._valued(gathered),
            stored=self._stored(),
            place=PLACE,
            first=_FIRST,
            order=order,
            values=sql.SQL(", ").join(self._values),
            same_values=_same(self._compared, "target", "s"),
            same_key=_same_key(self.written, "target", "s"),
            same_key_as_first=_same_key(self.written, "s", "first"),
        )

    def moved(self, gathered: GatheredRows) -> sql.Composed:
        """The query for the stored rows that the batch changes and whose values a row of another key has."""
        return sql.SQL(
            "SELECT FROM ({stored}) AS target JOIN ({given}) AS given ON {same_key_as_given} "
            "JOIN ({valued}) AS s ON {same_values} WHERE NOT ({same_key})"
        ).format(
            stored=self._stored(),
            given=keys_of(gathered, self.written),
            valued=self._valued(gathered),
            same_key_as_given=_same_key(self.written, "target", "given"),
            same_values=_same(self._compared, "target", "s"),
            same_key=_same_key(self.written, "target", "s"),
        )

    @property
    def _values(self) -> list[sql.Identifier]:
        return [sql.Identifier(f"pgonce: {number}") for number in range(len(self.expressions))]

    @property
    def _compared(self) -> list[tuple[sql.Identifier, sql.Composable]]:
        return list(zip(self._values, self.equal, strict=True))

    def _valued(self, gathered: GatheredRows) -> sql.Composed:
        """The rows with their place, the target's columns and the values; not deletes, and not what has no entry."""
        if self.written.changes:
            gathered = gathered.only(that_write(self.written.changes))
        columns = (
            sql.SQL("{} AS {}").format(text_as_assigned(column), sql.Identifier(column.target))
            for column in self.written.plan
        )
        rows = sql.SQL("SELECT ctid AS {}, {} FROM {} WHERE {}").format(
            PLACE, sql.SQL(", ").join(columns), gathered.source, gathered.wanted
        )
        present = sql.SQL(" AND ").join(sql.SQL("{} IS NOT NULL").format(value) for value in self._values)
        with_values = self._with_values(sql.SQL("({}) AS s").format(rows))
        return sql.SQL("SELECT * FROM ({}) AS s WHERE {}").format(with_values, present)

    def _stored(self) -> sql.Composed:
        return self._with_values(self.written.table.identifier)

    def _with_values(self, source: sql.Composable) -> sql.Composed:
        values = (
            sql.SQL("{} AS {}").format(sql.SQL(expression), name)
            for expression, name in zip(self.expressions, self._values, strict=True)
        )
        return sql.SQL("SELECT *, {} FROM {} WHERE {}").format(
            sql.SQL(", ").join(values), source, sql.SQL(self.condition)
        )


def unique_index(connection: psycopg.Connection, written: Written, error: psycopg.Error) -> UniqueIndex | None:
    """The unique index that ``error`` names; None if it is none, or one in which NULL equals NULL."""
    found = ask_about(connection, _UNIQUE_INDEX, error)
    if not found:
        return None
    equal = [
        sql.SQL("OPERATOR({}.{})").format(sql.Identifier(schema), sql.SQL(name)) if schema else EQUAL
        for _, schema, name, _ in found
    ]
    return UniqueIndex(written, [expression for expression, *_ in found], equal, found[0][-1] or "true")


_UNIQUE_INDEX = """
SELECT pg_get_indexdef(i.indexrelid, k.n, false), n.nspname, e.oprname, pg_get_expr(i.indpred, i.indrelid)
FROM pg_class AS t JOIN pg_index AS i ON i.indrelid = t.oid JOIN pg_class AS c ON c.oid = i.indexrelid
CROSS JOIN generate_series(1, i.indnkeyatts::int) AS k(n)
JOIN pg_opclass AS o ON o.oid = i.indclass[k.n - 1]
LEFT JOIN pg_amop AS a ON a.amopfamily = o.opcfamily AND a.amopstrategy = 3
    AND a.amoplefttype = o.opcintype AND a.amoprighttype = o.opcintype
LEFT JOIN pg_operator AS e ON e.oid = a.amopopr LEFT JOIN pg_namespace AS n ON n.oid = e.oprnamespace
WHERE t.relnamespace::regnamespace::text = quote_ident({}) AND t.relname = {} AND c.relname = {} AND i.indisunique
-- Postgres 14 has no such column.
AND coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false') = 'false'
ORDER BY k.n
"""


def guessed(connection: psycopg.Connection, query: sql.Composable) -> list[tuple[Any, ...]] | None:
    """
    What a query about the rows finds, under our search_path; None if that cannot be told.

    Types may lack an equality of Postgres's own, rows a column that an index needs, and the role the right to read.
    """
    try:
        with connection.transaction():
            return search_path.execute_in_tx(connection, query).fetchall()
    except (psycopg.errors.DataError, psycopg.errors.ProgrammingError):
        return None


def stored_rows_of(gathered: GatheredRows, written: Written) -> sql.Composed:
    """The query for the stored rows that the batch changes."""
    return sql.SQL("SELECT FROM {} AS target JOIN ({}) AS given ON {}").format(
        written.table.identifier, keys_of(gathered, written), _same_key(written, "target", "given")
    )


def keys_of(gathered: GatheredRows, written: Written) -> sql.Composed:
    """The keys of gathered rows, named as in the target."""
    keys = written.upsert.keys if written.upsert else ()
    values = (sql.SQL("{} AS {}").format(text_as_assigned(key), sql.Identifier(key.target)) for key in keys)
    return sql.SQL("SELECT {} FROM {} WHERE {}").format(sql.SQL(", ").join(values), gathered.source, gathered.wanted)


def _same_key(written: Written, left: str, right: str) -> sql.Composable:
    """The condition that two rows have the same key; false if rows are appended."""
    upsert = written.upsert
    keys = [(sql.Identifier(key.target), upsert.equal(key.target)) for key in upsert.keys] if upsert else []
    return _same(keys, left, right)


def _same(compared: Sequence[tuple[sql.Identifier, sql.Composable]], left: str, right: str) -> sql.Composable:
    """The condition that two rows have the same values; false if there are none to compare."""
    pair = sql.SQL("{left}.{name} {equal} {right}.{name}")
    pairs = [
        pair.format(left=sql.Identifier(left), right=sql.Identifier(right), name=name, equal=equal)
        for name, equal in compared
    ]
    return sql.SQL(" AND ").join(pairs) if pairs else sql.SQL("false")
