"""
Choose what reads the changes of a frame (Debezium's envelope, for one): which row each brings, and whether it deletes.

Runs in tasks, and on the driver for foreachBatch, before rows are encoded. Invariant: every row that comes out says in
one boolean column whether it deletes; an operation that is not known is refused, never guessed. From an envelope, a row
is the image after its change, or for a delete the one before it, as far as the source told it; the envelope's own
columns are left behind.

https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType, StringType, StructField, StructType

from ..encoding import compute as pc
from ..options.destination import OPERATION, Destination
from ..options.routes import Routes
from .change_types import (
    AllDelete,
    AsTheyAre,
    ChangeTypes,
    DeleteWhen,
    DeleteWhenByRoute,
    among,
    change_columns,
    refuse_unknown,
    require_column,
    with_deleted,
    without_row,
)


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


_ENVELOPE = frozenset({"before", "after", "source", OPERATION, "ts_ms", "ts_us", "ts_ns", "transaction"})
_WRITES, _DELETES = ("c", "r", "u"), "d"
_REMEDY = (
    "The known operations are c, r, u and d. Filter tombstones out before from_json (where value is not null). A "
    "record that does not fit the schema of from_json also gives null. A truncate (t) must be repeated by hand."
)


@dataclass(frozen=True)
class Envelope:
    """
    The columns ``before``, ``after`` and ``op`` of Debezium's events, and those that the user has added.

    :param of: the frame's columns.
    :param order_by: the field that orders changes, which may be one of the envelope's: ``source.lsn``.
    """

    of: StructType
    order_by: str | None
    drops_rows: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_column(self.of, "after", StructType)
        require_column(self.of, "before", StructType)
        require_column(self.of, OPERATION, StringType)

    @cached_property
    def struct_type(self) -> StructType:
        """The columns of ``after``, those that the user has added, the operation, and the order."""
        fields = [*self._image, *self._beside]
        if not any(field.name == OPERATION for field in fields):
            fields.append(StructField(OPERATION, StringType()))
        path, data_type = self._order
        if path:
            fields.append(StructField(path[-1], data_type or StringType()))
        return with_deleted(StructType(fields))

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows, each as one image."""
        operations = batch.column(OPERATION)
        deletes = pc.equal(operations, _DELETES)
        known = pc.or_(deletes, among(operations, _WRITES))
        refuse_unknown(OPERATION, operations, pc.fill_null(known, fill_value=False), _REMEDY)
        after, before = batch.column("after"), batch.column("before")
        _refuse_missing(deletes, after, before)
        arrays = [_either(deletes, before, after, field.name) for field in self._image]
        arrays += [batch.column(field.name) for field in self._beside]
        if OPERATION not in {field.name for field in (*self._image, *self._beside)}:
            arrays.append(operations)
        path, _ = self._order
        if path:
            arrays.append(_at(batch, path))
        return pa.RecordBatch.from_arrays([*arrays, deletes], names=self.struct_type.names)

    @property
    def _image(self) -> list[StructField]:
        after = next(field.dataType for field in self.of.fields if field.name == "after")
        return list(after.fields) if isinstance(after, StructType) else []

    @property
    def _beside(self) -> list[StructField]:
        return [field for field in self.of.fields if field.name not in _ENVELOPE]

    @cached_property
    def _order(self) -> tuple[list[str], DataType | None]:
        """The path of the order column into the envelope, if it is there, and its type."""
        names = {field.name for field in (*self._image, *self._beside)}
        path = self.order_by.split(".") if self.order_by else []
        if not path or self.order_by in names or path[0] not in _ENVELOPE or path == [OPERATION]:
            return [], None
        data_type: DataType = self.of
        for name in path:
            found = data_type.fields if isinstance(data_type, StructType) else []
            field = next((field for field in found if field.name == name), None)
            if field is None:
                raise change_columns(
                    f"orderBy={self.order_by!r} names a field that the envelope does not have.",
                    "Give from_json a schema that has it, or name another field, such as source.lsn or ts_ms.",
                )
            data_type = field.dataType
        if path[-1] in names:
            raise change_columns(
                f"orderBy={self.order_by!r} would become column {path[-1]!r}, which the rows already have.",
                "Add the order to the frame as a column with another name, and set orderBy to that name.",
            )
        return path, data_type


def _refuse_missing(deletes: pa.Array, after: pa.Array, before: pa.Array) -> None:
    for image, column, why, remedy in (
        (pc.if_else(deletes, before.is_valid(), True), "before", "but the operation is a delete",
         "Let the source send the keys of deleted rows: give its table a primary key, or REPLICA IDENTITY FULL."),
        (pc.if_else(deletes, True, after.is_valid()), "after", "but the operation is not a delete",
         "Check that the schema given to from_json is that of the events."),
    ):  # fmt: skip
        if not pc.all(image, min_count=0).as_py():
            raise without_row(column, image.index(pa.scalar(value=False)).as_py(), why, remedy)


def _either(deletes: pa.Array, before: pa.StructArray, after: pa.StructArray, name: str) -> pa.Array:
    """The field ``name`` of ``before`` where a row deletes, and of ``after`` elsewhere."""
    written = pc.struct_field(after, name)
    if before.type.get_field_index(name) < 0 or not pc.any(deletes, min_count=0).as_py():
        return written
    old = pc.struct_field(before, name)
    if old.type != written.type:
        old = old.cast(written.type)
    # Not if_else, which does not know every type.
    rows = pa.array(range(len(after)), pa.int64())
    chosen = pc.if_else(deletes, pc.add(rows, len(after)), rows)
    return pa.concat_arrays([written, old]).take(chosen)


def _at(batch: pa.RecordBatch, path: list[str]) -> pa.Array:
    array = batch.column(path[0])
    return pc.struct_field(array, path[1:]) if path[1:] else array
