"""
Read the rows of a frame as they are to be written; where rows say what is to be done with them, a room reads them.

Runs in tasks, and on the driver for foreachBatch, before rows are encoded. Invariant: rows stay in the order in which
they came.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import StructType

from pgonce.offsets_store.commit.settings import CommitSettings

from .options.destination import Destination
from .options.routes import Routes


class RowReader(Protocol):
    """Reads the rows of one frame."""

    @property
    def drops_rows(self) -> bool:
        """Whether some rows of the frame may not be among those that are read."""

    @property
    def struct_type(self) -> StructType:
        """The columns of the rows that are read."""

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """
        The rows that are to be written or deleted.

        :raises EncodingError: CHANGE_UNKNOWN, KEY_CHANGED.
        """


@dataclass(frozen=True)
class AllRows:
    """Every row is written, with all its columns."""

    struct_type: StructType
    drops_rows = False

    def read(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The same rows."""
        return batch


class Decoders(Protocol):
    """:mod:`pgonce.sink.decoding`, for ``decode``."""

    def reader_of_records(
        self, where: Destination, struct_type: StructType, settings: CommitSettings | None, *, with_positions: bool
    ) -> RowReader:
        """
        What decodes the records of a frame that is Spark's Kafka source, by the types of the table's columns.

        :param settings: how the table's database is reached. None in the commit worker, where nothing is read.
        """


class Readers(Protocol):
    """The rooms that read rows."""

    def feeds(self) -> Feeds:
        """For ``mode=apply``."""

    def decoders(self) -> Decoders:
        """For ``decode``."""


class Feeds(Protocol):
    """:mod:`pgonce.sink.changes`, for ``mode=apply``."""

    def reader_of_changes(self, where: Destination | Routes, struct_type: StructType) -> RowReader:
        """What reads rows that say what is to be done; refused if the frame lacks a column that it needs."""


def reader_of(
    where: Destination | Routes,
    struct_type: StructType,
    rooms: Readers,
    settings: CommitSettings | None = None,
    *,
    with_positions: bool = True,
) -> RowReader:
    """
    What reads the rows of a frame with these columns, which go ``where``.

    :param settings: how the table's database is reached, where records are to be decoded.
    :param with_positions: whether decoded rows carry their positions in Kafka.
    :raises ConfigurationError: CHANGE_COLUMNS, if the frame lacks a column that says what to do; ROUTE_COLUMN, if it
        lacks the one that names the table.
    """
    if isinstance(where, Destination) and where.decoding:
        return rooms.decoders().reader_of_records(where, struct_type, settings, with_positions=with_positions)
    each = [route.destination for route in where] if isinstance(where, Routes) else [where]
    has_changes = any(destination.changes for destination in each)
    reader = rooms.feeds().reader_of_changes(where, struct_type) if has_changes else AllRows(struct_type)
    if isinstance(where, Routes):
        where.refuse_unfit(reader.struct_type)
    return reader
