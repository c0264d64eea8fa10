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

from pgonce.offsets_store.errors import NOTHING, TargetError

from ...encoding.encoded_types import EncodedColumn
from ...options.destination import BEFORE_COLUMN, RECORD_KEY
from ..checked_table import ColumnPlan
from ..rows import GatheredRows
from .keys import Written, delete_action

_BEFORE = sql.SQL("{}::pg_catalog.jsonb").format(sql.Identifier(BEFORE_COLUMN))
_OF_RECORD = sql.SQL("pg_catalog.jsonb_strip_nulls({} OPERATOR(pg_catalog.->) {})").format(_BEFORE, RECORD_KEY)


@dataclass(frozen=True)
class MovedRows:
    """The gathered rows of these ``columns``, as far as their ``keys`` have changed. All conditions are never null."""

    columns: Sequence[EncodedColumn]
    keys: Sequence[ColumnPlan]

    @staticmethod
    def of(written: Written) -> MovedRows:
        """Those of the rows that are written by key."""
        return MovedRows(written.columns, written.by_key.keys)

    @property
    def may_be(self) -> bool:
        """Whether the rows say what was before them."""
        return any(column.name == BEFORE_COLUMN for column in self.columns)

    @property
    def is_moved(self) -> sql.Composable:
        """Whether a row had another key."""
        other = (
            sql.SQL("{} OPERATOR(pg_catalog.<>) {}").format(self._old(key.source), sql.Identifier(key.source))
            for key in self.keys
        )
        return self._is_true(sql.SQL(" OR ").join(other))

    @property
    def is_unknown(self) -> sql.Composable:
        """Whether the source does not say which key a row had, and may have changed it without changing its own."""
        unknown = sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(self._old(key.source)) for key in self.keys)
        covered = sql.SQL("COALESCE({} OPERATOR(pg_catalog.?&) {}, false)").format(_OF_RECORD, self._names)
        has_before = sql.SQL("{} IS NOT NULL").format(sql.Identifier(BEFORE_COLUMN))
        return self._is_true(sql.SQL("{} AND ({}) AND NOT {}").format(has_before, unknown, covered))

    @property
    def is_another_rows(self) -> sql.Composable:
        """Whether a row had another key, which may be that of another row of the source by now."""
        rest = sql.SQL("{} OPERATOR(pg_catalog.-) {}").format(_OF_RECORD, self._names)
        own = sql.SQL("{} AND ({} OPERATOR(pg_catalog.=) '{{}}'::pg_catalog.jsonb) IS NOT TRUE")
        return self._is_true(own.format(self.is_moved, rest))

    def deletes(self, rows: GatheredRows, deleted: str | None, order: str | None) -> sql.Composable:
        """The deletes of the old keys: like ``rows``, with their places and nothing but keys and order."""
        keys = {key.source for key in self.keys}
        values = []
        for column in self.columns:
            value: sql.Composable = sql.SQL("NULL::pg_catalog.{}").format(sql.SQL(column.postgres_type))
            if column.name in keys:
                value = self._old(column.name)
            elif column.name == deleted:
                value = sql.SQL("true")
            elif column.name == order:
                value = sql.Identifier(column.name)
            values.append(sql.SQL("{} AS {}").format(value, sql.Identifier(column.name)))
        return sql.SQL("(SELECT ctid, {} FROM {} WHERE {} AND {}) AS moved").format(
            sql.SQL(", ").join(values), rows.source, rows.wanted, self.is_moved
        )

    @property
    def _names(self) -> sql.Composable:
        return sql.SQL("ARRAY[{}]::pg_catalog.text[]").format(
            sql.SQL(", ").join(sql.Literal(key.source) for key in self.keys)
        )

    def _old(self, name: str) -> sql.Composable:
        postgres_type = next(column.postgres_type for column in self.columns if column.name == name)
        return sql.SQL("({} OPERATOR(pg_catalog.->>) {})::pg_catalog.{}").format(
            _BEFORE, name, sql.SQL(postgres_type)
        )

    def _is_true(self, condition: sql.Composable) -> sql.Composable:
        return sql.SQL("(({}) IS TRUE)").format(condition) if self.may_be else sql.SQL("false")


def refuse_moved(written: Written, moved: int, unknown: int, of_others: int) -> None:
    """
    Refuse rows that may have left their old rows behind.

    :param moved: how many changes move a row.
    :param unknown: how many do not say whether they do.
    :param of_others: for how many the old key may be another row's by now.
    :raises TargetError: KEY_CHANGED, DELETE_ACTION.
    """
    keys = ", ".join(key.source for key in written.by_key.keys)
    if unknown:
        raise TargetError(
            "KEY_CHANGED",
            f"{unknown} updates of the batch may have changed the keys of {written.table.qualified_name} ({keys}): "
            "the row before the update lacks them, or is null though the key of the record in Kafka lacks one of them.",
            NOTHING,
            "Let the source send whole rows (ALTER TABLE ... REPLICA IDENTITY FULL), and write its rows again. If it "
            "never changes these columns, make before null where op is u, and leave key out of the frame.",
        )
    if of_others:
        raise TargetError(
            "KEY_CHANGED",
            f"{of_others} updates of the batch change the keys of {written.table.qualified_name} ({keys}), and the "
            "old key may be that of another row of the source by now.",
            NOTHING,
            "Set onlyNewer with orderBy, so that a row that is newer stays. Or, if these keys include those of the "
            "source's table, let the frame have the key of Kafka's record as a struct (from_json(key, ...) AS key), "
            "which shows it.",
        )
    if moved and written.changes and written.changes.deletes == "hard" and written.table.deletes_reach:
        raise delete_action(
            f"{moved} updates of the batch change the keys of {written.table.qualified_name} ({keys}). A row whose key "
            "has changed is deleted and written again, and that changes the rows that refer to it by a foreign key "
            "with an action.",
            "Let",
        )
