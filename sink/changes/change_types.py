"""
Read what ``deleteWhen`` and ``_change_type`` say of each row, and refuse frames and rows that cannot be read.

Pure; runs where the rows are read. Invariant: of an update, the image after it is kept, and the one before it is
dropped. An error names the column and the place of the row, and repeats no value but the operation itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
from pyspark.sql.types import BooleanType, DataType, StringType, StructField, StructType

from pgonce.offsets_store.errors import NOTHING, ConfigurationError, bad_option

from ..encoding import compute as pc
from ..errors import EncodingError
from ..options.destination import CHANGE_TYPE, DELETED_COLUMN

_SAY_IT = "Make the condition true or false for every row, for example coalesce(op = 'd', false)."
_WRITES, _DELETES, _BEFORE = ("insert", "update_postimage"), "delete", "update_preimage"


@dataclass(frozen=True)
class AsTheyAre:
    """Rows without an operation: all are written."""

    struct_type: StructType
    drops_rows: ClassVar[bool] = False

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows."""
        return batch


@dataclass(frozen=True)
class DeleteWhen:
    """Rows with a boolean ``column`` that says whether they delete."""

    struct_type: StructType
    column: str
    drops_rows: ClassVar[bool] = False

    @classmethod
    def of(cls, struct_type: StructType, column: str) -> DeleteWhen:
        """:raises ConfigurationError: CHANGE_COLUMNS."""
        require_column(struct_type, column, BooleanType)
        return cls(struct_type, column)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; one that does not say whether it deletes is refused."""
        says = batch.column(self.column)
        refuse_unknown(self.column, says, says.is_valid(), _SAY_IT)
        return batch


@dataclass(frozen=True)
class DeleteWhenByRoute:
    """Rows with several boolean ``columns``: ``route`` decides which of them says whether the row deletes."""

    struct_type: StructType
    route: str
    columns: Mapping[str, tuple[str, ...]]
    drops_rows: ClassVar[bool] = False

    @classmethod
    def of(cls, struct_type: StructType, route: str, columns: Mapping[str, tuple[str, ...]]) -> DeleteWhenByRoute:
        """
        :param columns: for each column, the values of ``route`` that it is used for.
        :raises ConfigurationError: CHANGE_COLUMNS.
        """
        for column in columns:
            require_column(struct_type, column, BooleanType)
        return cls(struct_type, route, columns)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows; one that does not say whether it deletes is refused."""
        values = pc.cast(batch.column(self.route), pa.string())
        for column, of in self.columns.items():
            says = batch.column(column)
            is_of_others = pc.invert(pc.is_in(values, value_set=pa.array(of, pa.string())))
            refuse_unknown(column, says, pc.or_(says.is_valid(), is_of_others), _SAY_IT)
        return batch


@dataclass(frozen=True)
class AllDelete:
    """Rows that all delete."""

    of: StructType
    drops_rows: ClassVar[bool] = False

    @property
    def struct_type(self) -> StructType:
        """The frame's columns, and :data:`~pgonce.sink.options.destination.DELETED_COLUMN`."""
        return with_deleted(self.of)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows."""
        return batch.append_column(DELETED_COLUMN, pa.repeat(pa.scalar(value=True), len(batch)))


@dataclass(frozen=True)
class ChangeTypes:
    """The change feed of a Delta table, or of Spark."""

    of: StructType
    drops_rows: ClassVar[bool] = True

    def __post_init__(self) -> None:
        require_column(self.of, CHANGE_TYPE, StringType)

    @property
    def struct_type(self) -> StructType:
        """The frame's columns, and :data:`~pgonce.sink.options.destination.DELETED_COLUMN`."""
        return with_deleted(self.of)

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows without the images before updates."""
        operations = batch.column(CHANGE_TYPE)
        deletes, before = pc.equal(operations, _DELETES), pc.equal(operations, _BEFORE)
        writes = among(operations, _WRITES)
        known = pc.fill_null(pc.or_(pc.or_(deletes, before), writes), fill_value=False)
        refuse_unknown(
            CHANGE_TYPE, operations, known, "Leave such rows out in Spark, or compute a column for deleteWhen."
        )
        marked = batch.append_column(DELETED_COLUMN, deletes)
        return marked.filter(pc.invert(before)) if pc.any(before, min_count=0).as_py() else marked


def among(operations: pa.Array, known: Sequence[str]) -> pa.Array:
    """
    Whether each operation is one of those that are ``known``.

    Their array is made here, because pyarrow imports pandas for the first one that is made of a list, and most
    processes that import this module never need that.
    """
    return pc.is_in(operations, value_set=pa.array(known, operations.type))


def with_deleted(struct_type: StructType) -> StructType:
    """These columns and :data:`~pgonce.sink.options.destination.DELETED_COLUMN`."""
    return StructType([*struct_type.fields, StructField(DELETED_COLUMN, BooleanType(), nullable=False)])


def require_column(struct_type: StructType, name: str, data_type: type[DataType]) -> StructField:
    """:raises ConfigurationError: CHANGE_COLUMNS, if there is no such column, or if it has another type."""
    field = next((field for field in struct_type.fields if field.name == name), None)
    if field is None or not isinstance(field.dataType, data_type):
        found = f"is {field.dataType.simpleString()}" if field else "is missing in the frame"
        raise change_columns(
            f"Column {name!r}, which holds the operation of each row, {found}; it must be {data_type.typeName()}.",
            "Compute it in Spark, for example withColumn('is_deleted', expr(\"op = 'd'\")), and name it in deleteWhen.",
        )
    return field


def change_columns(what: str, remedy: str) -> ConfigurationError:
    """The error for a frame that does not have the columns of its feed."""
    return bad_option("CHANGE_COLUMNS", what, remedy)


def refuse_unknown(column: str, operations: pa.Array, known: pa.Array, remedy: str) -> None:
    """:raises EncodingError: CHANGE_UNKNOWN, if ``known`` is not true for all operations."""
    if not pc.all(known, min_count=0).as_py():
        row = known.index(pa.scalar(value=False)).as_py()
        raise EncodingError(
            "CHANGE_UNKNOWN",
            f"Column {column!r} {in_row(row)} is {_shown(operations[row])}, which is not a known operation.",
            NOTHING,
            remedy,
        )


def without_row(column: str, row: int, why: str, remedy: str) -> EncodingError:
    """The error for a change that brings no row to write, or no key to delete by."""
    return EncodingError("CHANGE_WITHOUT_ROW", f"Column {column!r} {in_row(row)} is null, {why}.", NOTHING, remedy)


def in_row(row: int) -> str:
    """Where the row is, as far as a task knows."""
    return f"in row {row + 1} of one of its task's Arrow batches"


def _shown(value: pa.Scalar) -> str:
    if not value.is_valid:
        return "null"
    if not pa.types.is_string(value.type) and not pa.types.is_large_string(value.type):
        return repr(value.as_py())
    # Spark does not look at what it casts from binary to string.
    return repr(value.as_buffer().to_pybytes().decode(errors="replace"))[:40]
