"""
Tell which changes move a row: those whose key is another one than that of the row before, as Debezium shows it.

Pure; its SQL runs in the commit, on rows that were gathered. Invariant: such a change is one row of the batch. Only in
the table of changes it is two: a delete of the old key, and a write of the new one at the same place in the order. So
both are done, or the row is put aside and neither is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from pgonce.offsets_store.errors import bad_target

from ...encoding.encoded_types import EncodedColumn
from ...options.destination import BEFORE_COLUMN
from ..rows import GatheredRows
from ..written import Upsert, Written
from .keys import delete_action

_BEFORE = sql.SQL("{}::pg_catalog.jsonb").format(sql.Identifier(BEFORE_COLUMN))
# Without the fields that the keys of other tables of the stream have.
_RECORD = sql.SQL("pg_catalog.jsonb_strip_nulls({} OPERATOR(pg_catalog.->) 'key')").format(_BEFORE)


@dataclass(frozen=True)
class MovedRows:
    """The gathered rows of these ``columns`` whose keys have changed. Conditions are never null."""

    columns: Sequence[EncodedColumn]
    upsert: Upsert

    @property
    def is_moved(self) -> sql.Composable:
        """Whether a row had another key."""
        return self._any("{old} OPERATOR(pg_catalog.<>) {key}")

    @property
    def is_unclear(self) -> sql.Composable:
        """
        Whether a row may have had another key that is not known, or one that may be another row's by now.

        If the record's key has all keys, an update changes none: it would come as a delete and an insert. If it has no
        others, the old key is no other row's.
        """
        if not self._are_told:
            return sql.SQL("false")
        keys = sql.SQL("{}::pg_catalog.text[]").format([key.source for key in self.upsert.keys])
        has_all = sql.SQL("({} OPERATOR(pg_catalog.?&) {}) IS TRUE").format(_RECORD, keys)
        no_others = (
            "{0} OPERATOR(pg_catalog.<>) '{{}}' AND {0} OPERATOR(pg_catalog.-) {1} OPERATOR(pg_catalog.=) '{{}}'"
        )
        has_no_others = sql.SQL("(" + no_others + ") IS TRUE").format(_RECORD, keys)
        lacks_one = self._any("{before} IS NOT NULL AND {old} IS NULL")
        return sql.SQL("({} AND NOT ({}) OR {} AND NOT ({}))").format(lacks_one, has_all, self.is_moved, has_no_others)

    def deletes(self, rows: GatheredRows, deleted: str, place: sql.Composable) -> sql.Composable:
        """The deletes of the old keys: like ``rows``, with their places and nothing but keys and order."""
        null = "NULL::pg_catalog.{}"
        values: dict[str, sql.Composable]
        values = {column.name: sql.SQL(null.format(column.postgres_type)) for column in self.columns}
        values |= {key.source: self._old(key.source) for key in self.upsert.keys} | {deleted: sql.SQL("true")}
        if self.upsert.order_by:
            values[self.upsert.order_by.source] = sql.Identifier(self.upsert.order_by.source)
        named = (sql.SQL("{} AS {}").format(value, sql.Identifier(name)) for name, value in values.items())
        return sql.SQL("(SELECT {}, {} FROM {} WHERE {} AND {}) AS moved").format(
            place, sql.SQL(", ").join(named), rows.source, rows.wanted, self.is_moved
        )

    @property
    def _are_told(self) -> bool:
        return any(column.name == BEFORE_COLUMN for column in self.columns)

    def _any(self, condition: str) -> sql.Composable:
        """Whether ``condition`` is true of a key; false where rows do not say what was before them."""
        if not self._are_told:
            return sql.SQL("false")
        return sql.SQL("(({}) IS TRUE)").format(sql.SQL(" OR ").join(
            sql.SQL(condition).format(
                old=self._old(key.source), key=sql.Identifier(key.source), before=sql.Identifier(BEFORE_COLUMN)
            )
            for key in self.upsert.keys
        ))  # fmt: skip

    def _old(self, name: str) -> sql.Composable:
        postgres_type = next(column.postgres_type for column in self.columns if column.name == name)
        old = "({} OPERATOR(pg_catalog.->) 'row' OPERATOR(pg_catalog.->>) {})::pg_catalog.{}"
        return sql.SQL(old).format(_BEFORE, name, sql.SQL(postgres_type))


def refuse_moved(written: Written, moved: int, unclear: int) -> None:
    """:raises TargetError: KEY_CHANGED for changes that are unclear, DELETE_ACTION where deletes change other rows."""
    of = f"the keys of {written.table.qualified_name} ({', '.join(key.source for key in written.by_key.keys)})"
    if unclear:
        raise bad_target(
            "KEY_CHANGED",
            f"{unclear} updates of the batch changed {of}, or may have, and it is not sure which row of the table has "
            "to go: the row before such an update lacks keys, or is null though the key of its record lacks some; or "
            "the old key may be another row's by now.",
            "Let the frame have the key of Kafka's record as a struct (from_json(...) AS key), which shows whether the "
            "old key is the row's own: the table's keys must include it. Where rows before updates lack keys, let the "
            "source send whole rows (ALTER TABLE ... REPLICA IDENTITY FULL), and write its rows again. If these "
            "columns never change there, make before null where op is u, and leave the record's key out (page "
            "`change-data` of the documentation).",
        )
    if moved and written.changes and written.changes.deletes == "hard" and written.table.deletes_reach:
        what = f"{moved} updates of the batch change {of}. Each is a delete and a write here, and the delete would"
        raise delete_action(f"{what} change the rows that refer to the old row by a foreign key with an action.", "Let")
