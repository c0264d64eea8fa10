"""
The transaction that a user's function gets for one batch: it writes frames into any tables, and runs any SQL.

Runs on the driver, while the function does. Invariants: only one call at a time uses the connection, from any thread;
what a call could not do, or a savepoint has taken back, is not committed as if it had been done.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from psycopg.pq import TransactionStatus
from pyspark.sql import DataFrame
from sqlalchemy import Connection, CursorResult, event
from sqlalchemy.sql.elements import RollbackToSavepointClause, SavepointClause
from typing_extensions import Unpack

from pgonce.offsets_store.commit.transaction_state import refuse_open
from pgonce.offsets_store.errors import CommitError
from pgonce.offsets_store.ledger.published import Published, WrittenAs
from pgonce.offsets_store.offsets import Offsets
from pgonce.offsets_store.postgres.connect import driver_connection
from pgonce.offsets_store.verdict.facts import Batch

from ..options.definitions import RowOptions, TableOptions
from ..options.destination import DELETED_COLUMN, Changes, Destination, destination
from ..options.routes import Routes, where_to
from ..read_rows import reader_of
from ..writing.rooms import Rooms
from ..writing.rows import whole_or_failed
from ..writing.write_batch import write_batch_in_tx
from ..writing.written import WRITTEN
from .frame_rows import arriving_rows


class Steps:
    """
    What the function has written so far, by one call after the other.

    :param connection: the batch's, of which a savepoint may be rolled back.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._turn = threading.RLock()
        self._is_over = False
        self._written: list[Published] = []
        # How much was written when each savepoint was made.
        self._at_savepoints: dict[str, int] = {}
        self._has_gone_back = False
        event.listen(connection, "after_execute", self._follow)

    @property
    def rows(self) -> int:
        """How many rows went into tables."""
        return sum(one.rows for one in self._written)

    @contextmanager
    def turn(self) -> Iterator[None]:
        """
        Run the block while no other thread runs one; an error in it fails the transaction too.

        :raises CommitError: TRANSACTION_ENDED, after :meth:`close`; STATEMENT_FAILED.
        """
        with self._turn:
            if self._is_over:
                raise CommitError(
                    "TRANSACTION_ENDED",
                    "The function has returned, and its tx was used after that.",
                    "What was to be written then is not part of the batch.",
                    "Have the function wait for its threads before it returns, and do not keep tx.",
                )
            refuse_open(self._connection)
            with whole_or_failed(driver_connection(self._connection)):
                yield

    def add(self, published: Published) -> None:
        """Note what a call has written."""
        self._written.append(published)

    def _follow(self, _: Connection, statement: object, *__: object) -> None:
        """Keep up with the savepoints of ``begin_nested``. (Those of raw SQL are not seen.)"""
        if isinstance(statement, SavepointClause):
            self._at_savepoints[statement.ident] = len(self._written)
        elif isinstance(statement, RollbackToSavepointClause):
            del self._written[self._at_savepoints[statement.ident] :]
            self._has_gone_back = True

    def may_have_raised(self) -> bool:
        """Whether an error of Postgres that the function raises may be one of this transaction."""
        # After a savepoint was rolled back, or the connection was lost, nothing tells any more.
        if self._has_gone_back or self._connection.invalidated or self._connection.closed:
            return True
        return driver_connection(self._connection).info.transaction_status is not TransactionStatus.INTRANS

    def close(self) -> None:
        """Wait until the calls of other threads have ended, and let no more begin."""
        with self._turn:
            self._is_over = True

    def together(self, dropped: int) -> Published:
        """
        All that was written.

        :param dropped: how many rows of the batch were stored already.
        :raises CommitError: STATEMENT_FAILED, if a statement of the function is still open.
        """
        refuse_open(self._connection)
        counts: Counter[str] = Counter()
        targets: dict[str, int] = {}
        written_as: dict[str, WrittenAs] = {}
        tables: Counter[str] = Counter()
        notes: dict[str, str] = {}
        for one in self._written:
            targets.update(one.targets or {})
            written_as.update(one.written_as)
            for name, note in one.notes.items():
                earlier = notes.get(name, "")
                if note not in earlier:
                    notes[name] = f"{earlier} {note}".strip()
            counts.update({WRITTEN: one.rows} if one.counts is None else one.counts)
            # Of several tables, only those that got rows.
            tables.update(dict.fromkeys(one.targets or {}, one.rows) if one.tables is None else one.tables)
        return Published(
            self.rows,
            "function",
            dropped,
            targets,
            dict(counts) if set(counts) - {WRITTEN} else None,
            dict(tables) if len(tables) > 1 else None,
            notes=notes,
            written_as=written_as,
        )


class BatchTransaction:
    """
    One batch's transaction: write frames into any tables, run any SQL.

    The tables may be temporary ones that the function has made for a step in between. Threads of the function may call
    these methods; the calls run one after the other. If a call raises an error, nothing of the batch can be committed,
    even if the function swallows it; only ``with tx.connection.begin_nested():`` around the call takes it back alone.

    The function that gets it may be called again for the same batch, in a new transaction, after a lost connection or a
    deadlock: it should have no other side effects.
    """

    def __init__(self, connection: Connection, batch: Batch, steps: Steps, rooms: Rooms) -> None:
        self._connection = connection
        self._batch = batch
        self._steps = steps
        self._rooms = rooms

    @property
    def rows(self) -> int:
        """Rows handed to ``append``, ``upsert`` and the like so far, without those that went into temporary tables."""
        return self._steps.rows

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
        return self._write(frame, lambda: destination(table, **how))

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
        return self._write(frame, lambda: destination(table, "upsert", keys, order_by, **how))

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
        return self._write(frame, lambda: destination(table, "apply", keys, order_by, **how))

    def delete(self, frame: DataFrame, table: str, keys: Sequence[str] = ()) -> int:
        """
        Delete the rows of ``table`` whose ``keys`` are in the frame, and return the number of the frame's rows.

        Without ``keys`` the frame has the table's primary key, and no other columns that the table lacks.
        """
        with self._steps.turn():
            asked = destination(table, "apply", keys, delete_when=DELETED_COLUMN)
            where = replace(asked, changes=Changes(all_delete=True))
            frame = frame.select(*where.keys) if where.keys else frame
            return self._write(frame.selectExpr("*", f"true AS {DELETED_COLUMN}"), lambda: where)

    def replace(self, frame: DataFrame, table: str, **how: Unpack[TableOptions]) -> int:
        """Replace all rows of ``table`` with the frame's rows; readers never see it empty."""
        return self._write(frame, lambda: destination(table, "complete", **how))

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
        return self._write(frame, lambda: where_to(route=column, tables=tables, **how))

    def execute(self, sql: str, params: Mapping[str, Any] | Sequence[Any] | None = None) -> CursorResult[Any]:
        """
        Run SQL with psycopg's placeholders (``%s`` or ``%(name)s``); the result is SQLAlchemy's.

        Without ``params`` a percent sign is only a percent sign.
        """
        parameters = tuple(params) if params is not None and not isinstance(params, Mapping) else params
        with self._steps.turn():
            options = {"no_parameters": params is None}
            return self._connection.exec_driver_sql(sql, parameters, execution_options=options)

    def _write(self, frame: DataFrame, place: Callable[[], Destination | Routes]) -> int:
        """Write the frame to its ``place``, which raises an error if it cannot be one."""
        with self._steps.turn():
            where = place()
            if isinstance(where, Destination):
                where = replace(where, may_be_temporary=True)
            reader = reader_of(where, frame.schema, self._rooms)
            with arriving_rows(frame, reader, where, batch=self._batch) as rows:
                driver = driver_connection(self._connection)
                published = write_batch_in_tx(driver, where, rows, self._batch, rooms=self._rooms)
            # What went into a temporary table, and goes away with the batch, is not published.
            if published.targets or isinstance(where, Routes):
                self._steps.add(published)
        return published.rows
