"""
``foreachBatch`` with the user's own function: all that it writes is committed with the batch's offsets, or not at all.

Runs on the driver, in the thread that calls the function. Invariant: the batch's identity and offsets come from the
running query itself, never from what the caller passes or the function remembers.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame
from sqlalchemy import Connection, CursorResult
from typing_extensions import Unpack

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.work import Work
from pgonce.offsets_store.errors import bad_option
from pgonce.offsets_store.ledger.published import Published, WrittenAs
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.decide import SKIP
from pgonce.offsets_store.verdict.facts import Batch

from ..border import calls_users_code
from ..options.definitions import FunctionOptions, RowOptions, TableOptions
from ..options.destination import DELETED_COLUMN, Changes, Destination, destination
from ..options.option import Way
from ..options.reading import read, takes_options
from ..options.routes import Routes, where_to
from ..positions import stored_already
from ..writing.by_key.apply import WRITTEN
from ..writing.first_look import refuse_first_batch
from ..writing.write_batch import write_batch_in_tx
from .batch_writer import batch_settings_of
from .frame_rows import arriving_rows

BatchFunction = Callable[[DataFrame, int], None]


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
        return self._write(frame, destination(table, "upsert", keys, order_by, **how))

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
        return self._write(frame, destination(table, "apply", keys, order_by, **how))

    def delete(self, frame: DataFrame, table: str, keys: Sequence[str] = ()) -> int:
        """
        Delete the rows of ``table`` whose ``keys`` are in the frame, and return the number of the frame's rows.

        Without ``keys`` the frame has the table's primary key, and no other columns that the table lacks.
        """
        asked = destination(table, "apply", keys, delete_when=DELETED_COLUMN)
        where = replace(asked, changes=Changes(all_delete=True))
        return self._write(frame.select(*where.keys) if where.keys else frame, where)

    def replace(self, frame: DataFrame, table: str, **how: Unpack[TableOptions]) -> int:
        """Replace all rows of ``table`` with the frame's rows; readers never see it empty."""
        return self._write(frame, destination(table, "complete", **how))

    def route(
        self,
        frame: DataFrame,
        column: str,
        tables: Mapping[str, Mapping[str, Any]],
        **how: Unpack[RowOptions],
    ) -> int:
        """
        Write each row into the one of ``tables`` that its value in ``column`` chooses; return how many were written.

        ``how`` is what ``PostgresBatchWriter`` takes with ``route``.
        """
        return self._write(frame, where_to(route=column, tables=tables, **how))

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
        with arriving_rows(frame, where, batch=self._batch) as rows:
            published = write_batch_in_tx(driver_connection(self._connection), where, rows, self._batch)
        # What went into a temporary table, and goes away with the batch, is not published.
        if published.targets or isinstance(where, Routes):
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
        # Of several tables, only those that got rows.
        one = dict.fromkeys(published.targets or {}, published.rows)
        self.tables.update(one if published.tables is None else published.tables)
        self.rows += published.rows


@takes_options(Way.FUNCTION)
def transactional_batch(
    url: str = "", **options: Unpack[FunctionOptions]
) -> Callable[[Callable[[DataFrame, BatchTransaction], None]], BatchFunction]:
    """
    Turn a function ``(batch, tx)`` into one for ``foreachBatch``: all that it does through ``tx`` is one transaction.

    It is not called for a proven replay. ``name`` is the sink's name in the ledger: keep it when the function changes.
    With ``position_columns``, the frame comes without the rows that are stored already.

    :raises ConfigurationError: at once, for arguments that cannot work.
    """
    given = read({"url": url, **options}, Way.FUNCTION)
    name = given["name"]
    if not name:
        raise bad_option("NO_SINK_NAME", "transactional_batch needs a name.", 'Give it one: name="orders".')
    settings = batch_settings_of(given)
    positions = settings.positions

    def decorate(function: Callable[[DataFrame, BatchTransaction], None]) -> BatchFunction:
        @calls_users_code(function)
        @functools.wraps(function)
        def write_batch(frame: DataFrame, batch_id: int) -> None:
            if positions:
                positions.check(frame.schema)

            def publish(connection: Connection, batch: Batch, stored: Offsets | None) -> Published:
                # The session may come from a pool, with temporary tables of an earlier batch. They would be in the way
                # of new ones, and would hide permanent tables of the same name.
                driver_connection(connection).execute("DISCARD TEMP")
                tx = BatchTransaction(connection, batch)
                dropped = 0
                if positions is None:
                    function(frame, tx)
                else:
                    is_stored = stored_already(positions, stored, batch.span)
                    function(frame.where(~is_stored), tx)
                    dropped = frame.where(is_stored).count() if stored else 0
                tables = dict(tx.tables) if len(tx.tables) > 1 else None
                return Published(
                    tx.rows,
                    "function",
                    dropped,
                    tx.targets,
                    tx.counts,
                    tables,
                    notes=tx.notes,
                    written_as=tx.written_as,
                )

            planned = settings.batch_of(frame, batch_id)
            with settings.failures_kept(planned, name):
                # Only the function knows which tables it writes to.
                refuse_first_batch(settings.commit, planned, name, None)
                work = settings.checked(frame, Work(lambda _: name, publish, sealed=True))
                verdict = commit_batch(settings.commit, planned, work)
            if verdict in SKIP:
                # A stateful query fails if a batch's frame is never run.
                frame.write.format("noop").mode("overwrite").save()

        return write_batch

    return decorate
