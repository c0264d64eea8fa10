"""
What a transactional function may do with its batch.

Runs on the driver, inside the transaction that records the batch. Invariant: whatever goes through here is committed
with the batch's offsets, or not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from sqlalchemy import Connection, CursorResult
from typing_extensions import Unpack

from pgonce.offsets_store.ledger.published import Published, WrittenAs
from pgonce.offsets_store.offsets.compare import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.facts import Batch

from ..options.by_key import DELETED_COLUMN, Changes
from ..options.destination import Destination, TableOptions, destination
from ..options.hints import column_names
from ..options.route_options import where_to
from ..options.routes import Routes, UnknownRoutes
from ..writing.by_key.apply import WRITTEN
from ..writing.write_batch import write_batch_in_tx
from .frame_rows import collected_rows


class BatchTransaction:
    """
    One batch's transaction: write frames into any tables, run any SQL.

    The tables may be temporary ones that the function has made for a step in between.

    The function that gets it may be called again for the same batch, in a new transaction, after a lost connection or a
    deadlock: it should have no other side effects.
    """

    def __init__(self, connection: Connection, batch: Batch) -> None:
        self._connection = connection
        self._batch = batch
        self.rows = 0
        """Rows handed to ``append``, ``upsert`` and the like so far, without those that went into temporary tables."""
        self._counts: Counter[str] = Counter()
        self.targets: dict[str, int] = {}
        """The tables that these went into: qualified name to oid."""
        self.written_as: dict[str, WrittenAs] = {}
        """How rows were last written into each of them."""
        self.tables: Counter[str] = Counter()
        """How many rows went into each of them."""
        self.notes: dict[str, str] = {}
        """What was altered about them for their rows, or was left out of the rows, in a sentence for each table."""

    @property
    def counts(self) -> dict[str, int] | None:
        """What became of the rows so far, if any were applied by key; the others were simply written."""
        return dict(self._counts) if set(self._counts) - {WRITTEN} else None

    @property
    def batch_id(self) -> int:
        """Spark's batch id."""
        return self._batch.batch_id

    @property
    def start_offsets(self) -> Offsets | None:
        """Source id to offset where the batch begins, inclusive; None if unknown (batch 0 of most sources)."""
        return self._batch.start

    @property
    def end_offsets(self) -> Offsets | None:
        """Source id to offset where the batch ends, exclusive for Kafka."""
        return self._batch.end

    @property
    def connection(self) -> Connection:
        """A SQLAlchemy connection in this transaction; do not commit or roll it back (savepoints are fine)."""
        return self._connection

    def append(self, frame: DataFrame, table: str, **how: Unpack[TableOptions]) -> int:
        """Add the frame's rows to ``table``, and return their number; ``how`` may say ``schema_evolution``."""
        return self._write(frame, destination(table, **how))

    def upsert(
        self,
        frame: DataFrame,
        table: str,
        keys: Sequence[str] = (),
        *,
        order_by: str | None = None,
        **how: Unpack[TableOptions],
    ) -> int:
        """
        Insert the frame's rows or update those with the same ``keys``, by default the table's primary key.

        ``order_by`` picks among rows of one key. ``how`` is what ``PostgresBatchWriter`` takes with ``mode="upsert"``.
        """
        return self._write(frame, destination(table, "upsert", column_names("keys", keys), order_by, **how))

    def apply(
        self,
        frame: DataFrame,
        table: str,
        keys: Sequence[str] = (),
        *,
        order_by: str | None = None,
        **how: Unpack[TableOptions],
    ) -> int:
        """
        Do to ``table`` what each row of the frame says: insert, update or delete; return the number of rows.

        ``how`` is what ``PostgresBatchWriter`` takes with ``mode="apply"``, such as ``delete_when`` or ``change_feed``.
        """
        return self._write(frame, destination(table, "apply", column_names("keys", keys), order_by, **how))

    def delete(self, frame: DataFrame, table: str, keys: Sequence[str] = ()) -> int:
        """
        Delete the rows of ``table`` whose ``keys`` are in the frame, and return the number of the frame's rows.

        Without ``keys`` the frame has the table's primary key, and no other columns that the table lacks.
        """
        named = column_names("keys", keys)
        where = replace(
            destination(table, "apply", named, delete_when=DELETED_COLUMN), changes=Changes(all_delete=True)
        )
        return self._write(frame.select(*named) if named else frame, where)

    def replace(self, frame: DataFrame, table: str, **how: Unpack[TableOptions]) -> int:
        """Replace all rows of ``table`` with the frame's rows; readers never see it empty."""
        return self._write(frame, destination(table, "complete", **how))

    def route(
        self,
        frame: DataFrame,
        column: str,
        tables: Mapping[str, Mapping[str, Any]],
        *,
        unknown_routes: UnknownRoutes | None = None,
        mode: str = "append",
        keys: Sequence[str] = (),
        order_by: str | None = None,
        **how: Unpack[TableOptions],
    ) -> int:
        """
        Write each row into the one of ``tables`` that its value in ``column`` chooses; return how many were written.

        All arguments mean what they mean to ``PostgresBatchWriter``.
        """
        return self._write(frame, where_to("", column, tables, unknown_routes, mode, keys, order_by, **how))

    def execute(self, sql: str, params: Mapping[str, Any] | Sequence[Any] | None = None) -> CursorResult[Any]:
        """
        Run SQL with psycopg's placeholders (``%s`` or ``%(name)s``); the result is SQLAlchemy's.

        Without ``params`` a percent sign is only a percent sign.
        """
        parameters = tuple(params) if params is not None and not isinstance(params, Mapping) else params
        return self._connection.exec_driver_sql(sql, parameters, execution_options={"no_parameters": params is None})

    def _write(self, frame: DataFrame, where: Destination | Routes) -> int:
        if isinstance(where, Destination):
            where = replace(where, may_be_temporary=True)
        with collected_rows(frame, where) as rows:
            published = write_batch_in_tx(driver_connection(self._connection), where, rows, self._batch)
        # What went into a temporary table, and goes away with the batch, is not published.
        if published.targets:
            self._note(published)
        return published.rows

    def _note(self, published: Published) -> None:
        self.targets.update(published.targets or {})
        self.written_as.update(published.written_as)
        for name, note in published.notes.items():
            earlier = self.notes.get(name, "")
            if note not in earlier:
                self.notes[name] = f"{earlier} {note}".strip()
        self._counts.update({WRITTEN: published.rows} if published.counts is None else published.counts)
        self.tables.update(published.tables or dict.fromkeys(published.targets or {}, published.rows))
        self.rows += published.rows
