"""
Which frames and which rows are not changes that can be read?

Pure. Invariant: an error names the column and the place of the row, and repeats no value but the operation itself.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, StructField, StructType

from pgonce.offsets_store.errors import NOTHING, ConfigurationError, bad_option

from ..errors import EncodingError


def require_column(struct_type: StructType, name: str, data_type: type[DataType]) -> StructField:
    """:raises ConfigurationError: CHANGE_COLUMNS, if there is no such column, or if it has another type."""
    field = next((field for field in struct_type.fields if field.name == name), None)
    if field is None or not isinstance(field.dataType, data_type):
        found = f"is {field.dataType.simpleString()} here" if field else "the frame does not have"
        raise change_columns(
            f"The column {name!r}, which should say what each row does, {found}; it must be {data_type.typeName()}.",
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
            f"Column {column!r} {in_row(row)} is {_shown(operations[row])}, which does not say what to do "
            "with the row.",
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
