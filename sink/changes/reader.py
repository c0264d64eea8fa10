"""
Choose what reads the changes of a frame: which row each brings, and whether it deletes.

Runs in tasks, and on the driver for foreachBatch, before rows are encoded. Invariant: every row that comes out says in
one boolean column whether it deletes; an operation that is not known is refused, never guessed.
"""

from __future__ import annotations

from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from ..options.destination import Destination
from ..options.routes import Routes
from .change_types import AllDelete, AsTheyAre, ChangeTypes, DeleteWhen, DeleteWhenByRoute
from .debezium import Envelope


class ChangeReader(Protocol):
    """Reads the rows of one frame and their operations, in any form."""

    @property
    def struct_type(self) -> StructType:
        """The columns of what :meth:`read` returns."""

    @property
    def drops_rows(self) -> bool:
        """Whether fewer rows may come out than go in."""

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """
        The rows to be written or deleted, in the order in which they came.

        :raises EncodingError: CHANGE_UNKNOWN, CHANGE_WITHOUT_ROW.
        """


def reader_of(where: Destination | Routes, struct_type: StructType) -> ChangeReader:
    """
    What reads the rows of a frame with these columns, which go ``where``.

    :raises ConfigurationError: CHANGE_COLUMNS, if the frame lacks a column that says what to do; ROUTE_COLUMN, if it
        lacks the one that names the table.
    """
    if isinstance(where, Routes):
        reader = _reader_for_all(where, struct_type)
        where.refuse_unfit(reader.struct_type)
        return reader
    return _reader_for_one(where, struct_type)


def _reader_for_all(routes: Routes, struct_type: StructType) -> ChangeReader:
    if routes.feed:
        return _reader_for_one(routes.each[0].destination, struct_type)
    columns = routes.delete_columns
    return DeleteWhenByRoute.of(struct_type, routes.column, columns) if columns else AsTheyAre(struct_type)


def _reader_for_one(destination: Destination, struct_type: StructType) -> ChangeReader:
    changes = destination.changes
    if changes is None:
        return AsTheyAre(struct_type)
    if changes.all_delete:
        return AllDelete(struct_type)
    if changes.delete_when:
        return DeleteWhen.of(struct_type, changes.delete_when)
    if changes.feed == "debezium":
        return Envelope(struct_type, destination.order_by)
    return ChangeTypes(struct_type)
