"""
Rows that cannot be encoded: they are found, and put aside as JSON, so that the others can be written.

Runs in tasks, and in the driver for foreachBatch. Invariant: a row is either encoded or put aside; if all rows of a
batch can be encoded, it costs nothing more. jsonb takes the JSON, and ``jsonb_to_record`` reads every value that could
have been encoded as the encoder would have written it; no byte of the other values is lost.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from json.encoder import encode_basestring
from typing import NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql import types as t

from ..errors import EncodingError
from .arrow_forms import UnfitValueError, as_stream, copied, in_form, unfit_values
from .copy_encoder import NOTHING_WRITTEN, CopyEncoder
from .encoded_types import TEXTS, EncodedColumn
from .json_texts import READ_BY_POSTGRES, Forms, json_texts, quoted

_NO_FORM = (ValueError, pa.ArrowNotImplementedError, UnfitValueError)
_WITH_NUL = Forms(text=encode_basestring)


@dataclass(frozen=True)
class UnfitRow:
    """
    A row of the batch, as the text of a JSON object, and why it cannot be written.

    It goes where the other rows of its task attempt go, and counts only if that attempt is chosen. ``column_name`` has
    the value that Postgres cannot hold; ``code`` and ``message`` are those of the error that it would be without dead
    letters. ``place`` is the row's topic, partition and offset in Kafka, where rows carry them. ``record`` is a record
    that could not be decoded to a row; then ``row_data`` is an empty object, because a replay decodes it again.
    """

    row_data: str = field(repr=False)
    column_name: str
    code: str
    message: str
    place: tuple[str, int, int] | None = None
    record: Record | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """The characters of the row, or of the record."""
        return len(self.row_data) + sum(len(part) for part in self.record or () if part)


class Record(NamedTuple):
    """
    A record of Kafka's, in texts: key and value in base64, its time in microseconds, and its headers as JSON, a list
    of lists of a name and a value in base64.
    """

    key: str | None
    value: str | None
    time: str
    headers: str | None


REFUSED = "pgonce_refused"
"""
The column of decoded rows that says why a record cannot be decoded; it is never written, and null for all others.

It is a struct of texts: ``column``, ``message``, ``where`` the record is, and the fields of :class:`Record`.
"""


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


class UnfitRows:
    """
    The rows of one task, or of one frame, that cannot be encoded; ``rows`` are those that were put aside so far.

    :param written: the columns that go into the target, if batches have others as well.
    :param most: how many rows may be put aside. With None, the first one raises the encoder's error.
    :param positions: if rows carry their position in Kafka. If one cannot be written, no row is put aside, since
        its origin could not be found later.
    """

    def __init__(
        self,
        most: int | None = None,
        positions: Positions | None = None,
        written: Sequence[EncodedColumn] | None = None,
    ) -> None:
        self.rows: list[UnfitRow] = []
        self._most = most
        self._positions = positions
        self._written = written

    def encode_others(self, encoder: CopyEncoder, batch: pa.RecordBatch) -> tuple[bytes, pa.RecordBatch]:
        """
        Put aside the rows of ``batch`` that cannot be encoded, and return the others: their body, and as they came.

        :raises EncodingError: as the encoder does, if more rows than may be put aside cannot be encoded.
        """
        batch = self._decoded(batch)
        try:
            return encoder.encode(self._of(batch, encoder.columns)), batch
        except EncodingError as error:
            if self._most is None or not isinstance(error.__cause__, UnfitValueError) or self._lacks_place(batch):
                raise
        fit = self._without_unfit(encoder, batch)
        return encoder.encode(self._of(fit, encoder.columns)), fit

    def _decoded(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows whose records could be decoded; the others are put aside."""
        if REFUSED not in batch.schema.names or batch.column(REFUSED).null_count == len(batch):
            return batch
        refused = batch.column(REFUSED)
        numbers = [row for row, is_refused in enumerate(refused.is_valid().to_pylist()) if is_refused]
        bad = _ranges(batch, [(number, number + 1) for number in numbers])
        for place, why in zip(self._places(bad), bad.column(REFUSED).to_pylist(), strict=True):
            if self._most is None or len(self.rows) >= self._most:
                raise self._undecoded(why)
            record = Record(*(why[name] for name in Record._fields))
            self.rows.append(UnfitRow("{}", why["column"], "RECORD_UNDECODED", why["message"], place, record))
        return _ranges(batch, [(before + 1, end) for before, end in pairwise([-1, *numbers, len(batch)])])

    def _undecoded(self, why: Mapping[str, str]) -> EncodingError:
        what = f"A record ({why['where']}) cannot be decoded: {why['message']}"
        remedy = (
            "Leave it out in Spark, with where(...) on partition and offset. In a stream, deadLetters puts it aside."
        )
        if self._most is not None:
            what += f" {self._most} other records of the task cannot be decoded either (maxDeadLetters)."
            remedy = "So many bad records often have one cause, in the source or in the table: remove it. Or raise "
            remedy += "maxDeadLetters."
        return EncodingError("RECORD_UNDECODED", what, NOTHING_WRITTEN, remedy)

    def _of(self, batch: pa.RecordBatch, columns: Sequence[EncodedColumn]) -> pa.RecordBatch:
        # Position columns are left out, and the records that rows were decoded from.
        if batch.num_columns == len(columns):
            return batch
        return batch.select([column.name for column in columns])

    def _without_unfit(self, encoder: CopyEncoder, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns, most = self._written or encoder.columns, (self._most or 0) - len(self.rows)
        written = self._of(batch, columns)
        found = _find(written, columns, most)
        if len(found) > most:
            raise self._too_many(found[-1], encoder.rows)
        # In the order of the rows, not of the columns in which they were found.
        found.sort(key=lambda unfit: unfit.row)
        numbers = [unfit.row for unfit in found]
        rows = [(number, number + 1) for number in numbers]
        texts = row_texts(_ranges(written, rows).columns, columns)
        for unfit, text, place in zip(found, texts, self._places(_ranges(batch, rows)), strict=True):
            message = unfit.what[0].upper() + unfit.what[1:]
            self.rows.append(UnfitRow(text, unfit.column.name, unfit.code, message, place))
        return _ranges(batch, [(before + 1, end) for before, end in pairwise([-1, *numbers, len(batch)])])

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
        code, row = unfit.code, encoded + len(self.rows) + unfit.row + 1
        return EncodingError(
            code,
            f"In row {row} of its task, {unfit.what} {self._most} other rows of the task cannot be written either, and "
            "no more may become dead letters (maxDeadLetters).",
            NOTHING_WRITTEN,
            f"So many bad rows usually have one cause: find it first. {unfit.remedy} Or raise maxDeadLetters, so "
            "that they are put aside.",
        )


def _find(written: pa.RecordBatch, columns: Sequence[EncodedColumn], most: int) -> list[_Unfit]:
    """The rows with an unfit value, each with the first column that has one; one more than ``most`` is enough."""
    found: dict[int, _Unfit] = {}
    for array, column in zip(written.columns, columns, strict=True):
        for row, error in unfit_values(array, column.data_type, column.postgres_type):
            found.setdefault(row, _Unfit(row, column, *error.args))
            if len(found) > most:
                return list(found.values())
    return list(found.values())


def _ranges(batch: pa.RecordBatch, ranges: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    arrays = [copied(array, ranges) for array in batch.columns]
    return pa.RecordBatch.from_arrays(arrays, schema=batch.schema)


def row_texts(arrays: Sequence[pa.Array], columns: Sequence[EncodedColumn]) -> list[str]:
    """
    Return one JSON object for each row of these columns.

    A text that no JSON of Postgres can hold is ``{"base64": its bytes}``. A value with such a text inside is ``{"json":
    its JSON text}``, in which a NUL is escaped, or if it has none, ``{"arrow": an Arrow stream}`` in base64, of one
    column with this one value.
    """
    texts = [
        [f"{quoted(column.name)}: {text}" for text in _column_texts(array, column.data_type, column.postgres_type)]
        for array, column in zip(arrays, columns, strict=True)
    ]
    return ["{" + ", ".join(row) + "}" for row in zip(*texts, strict=True)]


def _column_texts(array: pa.Array, data_type: t.DataType, postgres_type: str) -> list[str]:
    try:
        return _texts(array, data_type, postgres_type)
    except _NO_FORM:
        return [_any_text(copied(array, [(row, row + 1)]), data_type, postgres_type) for row in range(len(array))]


def _any_text(one: pa.Array, data_type: t.DataType, postgres_type: str) -> str:
    stream = as_stream(pa.record_batch([one], names=["value"]))
    try:
        return _texts(one, data_type, postgres_type)[0]
    except UnfitValueError:
        return _in_base64("arrow", stream)
    except _NO_FORM:
        if isinstance(data_type, TEXTS):
            text = one if pa.types.is_string(one.type) else one.cast(pa.large_string())
            return _in_base64("base64", text.cast(pa.large_binary())[0].as_py())
    try:
        (text,) = json_texts(one, data_type, _WITH_NUL)
    except _NO_FORM:
        return _in_base64("arrow", stream)
    return f'{{"json": {encode_basestring(text or "null")}}}'


def _in_base64(kind: str, value: bytes) -> str:
    return f'{{"{kind}": "{b64encode(value).decode()}"}}'


def _texts(array: pa.Array, data_type: t.DataType, postgres_type: str) -> list[str]:
    """:raises Exception: one of :data:`_NO_FORM`, for a value that cannot be read back from JSON."""
    if postgres_type == "jsonb":
        texts = array.to_pylist() if isinstance(data_type, t.StringType) else json_texts(array, data_type)
    else:
        texts = json_texts(in_form(array, data_type), data_type, READ_BY_POSTGRES)
    return ["null" if text is None else text for text in texts]
