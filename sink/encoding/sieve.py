"""
What becomes of rows that cannot be encoded, if they are to be put aside?

Runs in tasks, and in the driver for foreachBatch. Invariant: a row is encoded or put aside, never both and never
neither; a batch of which all rows can be encoded costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import pyarrow as pa
from pyspark.sql import types as t

from ..errors import EncodingError
from ..unfit_row import UnfitRow
from .arrow_forms import UnfitValueError, copied, unfit_values
from .copy_encoder import NOTHING_WRITTEN, CopyEncoder
from .encoded_types import EncodedColumn, encoded_columns
from .row_texts import row_texts


class Positions(Protocol):
    """The columns that say where in Kafka each row comes from."""

    @property
    def names(self) -> tuple[str, str, str]:
        """Topic, partition, offset."""

    def of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The values of these columns."""


@dataclass(frozen=True)
class _Unfit:
    """The first value of a row that Postgres cannot hold."""

    row: int
    column: EncodedColumn
    code: str
    value: str
    remedy: str

    @property
    def what(self) -> str:
        return f"column {self.column.name!r} (Spark's {self.column.spark_type}) has {self.value}."


class Sieve:
    """
    Encodes the Arrow batches of one task, or of one frame, and keeps the rows that cannot be encoded.

    :param struct_type: the columns that go into the target; batches may have others, too.
    :param most: how many rows may be put aside. With None, the first one raises the encoder's error.
    :param positions: if rows carry their position in Kafka. If one cannot be written, no row is put aside, since
        nobody could say later where it came from.

    ``unfit`` has the rows that were put aside so far.
    """

    def __init__(self, struct_type: t.StructType, most: int | None = None, positions: Positions | None = None) -> None:
        self.unfit: list[UnfitRow] = []
        self._struct_type = struct_type
        self._most = most
        self._positions = positions

    def encode(self, encoder: CopyEncoder, batch: pa.RecordBatch) -> tuple[bytes, pa.RecordBatch]:
        """
        Return the rows of ``batch`` that can be encoded: their body, and the rows as they came.

        :raises EncodingError: as the encoder does, if more rows than may be put aside cannot be encoded.
        """
        try:
            return encoder.encode(self._of(batch, encoder.columns)), batch
        except EncodingError as error:
            if self._most is None or not isinstance(error.__cause__, UnfitValueError) or self._lacks_place(batch):
                raise
        fit = self._without_unfit(encoder, batch)
        return encoder.encode(self._of(fit, encoder.columns)), fit

    def _of(self, batch: pa.RecordBatch, columns: Sequence[EncodedColumn]) -> pa.RecordBatch:
        # Selected by name only if position columns are left out: a frame may have two of one name until Postgres
        # refuses it, and one of another shape is refused by the encoder.
        if self._positions is None or batch.num_columns == len(columns):
            return batch
        return batch.select([column.name for column in columns])

    def _without_unfit(self, encoder: CopyEncoder, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = encoded_columns(self._struct_type)
        written = self._of(batch, columns)
        most = (self._most or 0) - len(self.unfit)
        found = self._find(written, columns, most)
        if len(found) > most:
            raise self._too_many(found[-1], encoder.rows)
        # In the order of the rows, whatever column was looked at first.
        found.sort(key=lambda unfit: unfit.row)
        numbers = [unfit.row for unfit in found]
        rows = [(number, number + 1) for number in numbers]
        texts = row_texts(_ranges(written, rows).columns, self._struct_type, columns)
        for unfit, text, place in zip(found, texts, self._places(_ranges(batch, rows)), strict=True):
            message = unfit.what[0].upper() + unfit.what[1:]
            self.unfit.append(UnfitRow(text, unfit.column.name, unfit.code, message, place))
        return _ranges(batch, [(before + 1, end) for before, end in pairwise([-1, *numbers, len(batch)])])

    def _find(self, written: pa.RecordBatch, columns: Sequence[EncodedColumn], most: int) -> list[_Unfit]:
        """The rows with an unfit value, each with the first column that has one; one more than ``most`` is enough."""
        found: dict[int, _Unfit] = {}
        for array, field, column in zip(written.columns, self._struct_type, columns, strict=True):
            for row, error in unfit_values(array, field.dataType, column.postgres_type):
                found.setdefault(row, _Unfit(row, column, *error.args))
                if len(found) > most:
                    return list(found.values())
        return list(found.values())

    def _lacks_place(self, batch: pa.RecordBatch) -> bool:
        if self._positions is None:
            return False
        topics = batch.column(self._positions.names[0])
        return next(unfit_values(topics, t.StringType(), "text"), None) is not None

    def _places(self, batch: pa.RecordBatch) -> list[tuple[str, int, int] | None]:
        if self._positions is None:
            return [None] * len(batch)
        topic, partition, offset = (column.to_pylist() for column in self._positions.of(batch).columns)
        return list(zip(topic, partition, offset, strict=True))

    def _too_many(self, unfit: _Unfit, encoded: int) -> EncodingError:
        code, row = unfit.code, encoded + len(self.unfit) + unfit.row + 1
        return EncodingError(
            code,
            f"In row {row} of its task, {unfit.what} {self._most} other rows of the task cannot be written either, and "
            "no more may become dead letters (maxDeadLetters).",
            NOTHING_WRITTEN,
            f"So many bad rows usually have one cause, which should be found first. {unfit.remedy} If they are to be "
            "put aside nevertheless, raise maxDeadLetters.",
        )


def _ranges(batch: pa.RecordBatch, ranges: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    arrays = [copied(array, ranges) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
