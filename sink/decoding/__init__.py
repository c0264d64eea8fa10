"""
Decode the records of a topic by the types of the table's columns.

Runs where a batch is planned, and in the commit worker. Invariant: a frame that lacks a column of Spark's Kafka source
is refused before any row moves.
"""

from __future__ import annotations

from pyspark.sql import types as t

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import bad_option

from ..options.destination import Destination
from .record_keys import HEADERS
from .record_reader import OF_KAFKA, RecordReader


def reader_of_records(
    where: Destination, struct_type: t.StructType, settings: CommitSettings | None, *, with_positions: bool
) -> RecordReader:
    """
    What decodes the records of such a frame for the table ``where`` they go.

    :param settings: how the table's database is reached. None in the commit worker, where nothing is read.
    :raises ConfigurationError: CHANGE_COLUMNS, if the frame is not Spark's Kafka source.
    :raises TargetError: TARGET_MISSING, COLUMN_UNKNOWN, TYPE_MISMATCH.
    """
    types = {field.name: field.dataType for field in struct_type}
    has_headers = any(what.startswith(f"{HEADERS}.") for _, what in (where.decoding.kafka if where.decoding else ()))
    missing = [name for name, data_type in OF_KAFKA.items() if types.get(name) != data_type]
    if has_headers and HEADERS not in types:
        missing.append(HEADERS)
    if missing:
        raise bad_option(
            "CHANGE_COLUMNS",
            f"decode needs a frame that is Spark's Kafka source as it comes, and this one lacks {', '.join(missing)}.",
            'Read with spark.readStream.format("kafka"), and select nothing.'
            + (" Set its option includeHeaders to true." if HEADERS in missing else ""),
        )
    if settings is None:
        return RecordReader(where, (), (), "", with_positions=with_positions)
    # Tasks import this module, and have no use for psycopg.
    from .by_table import described, reader_for

    return reader_for(described(settings, where), where, with_positions=with_positions)
