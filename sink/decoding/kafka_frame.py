"""
Check that a frame is Spark's Kafka source as it comes, and make what decodes its records.

Runs where a batch is planned, and in the commit worker. Invariant: a frame that lacks a column of the source is refused
before any row moves.
"""

from __future__ import annotations

from pyspark.sql import types as t

from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.errors import bad_option

from ..options.destination import Decoding, Destination
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
    _require_kafka(struct_type, where.decoding)
    if settings is None:
        return RecordReader(where, (), (), "", with_positions=with_positions)
    # Tasks import this module, and have no use for psycopg.
    from .by_table import described, reader_for

    return reader_for(described(settings, where), where, with_positions=with_positions)


def _require_kafka(struct_type: t.StructType, decoding: Decoding | None) -> None:
    types = {field.name: field.dataType for field in struct_type}
    has_headers = decoding is not None and any(what.startswith(f"{HEADERS}.") for _, what in decoding.kafka)
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
