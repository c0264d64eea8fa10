"""
Errors of a batch's rows on their way into Postgres.

Runs anywhere. Invariant: as in `pgonce.offsets_store.errors`, the text alone says what happened, what it means for
the data and what to do next; it names columns, types and at most a key, and never shows a row or a password.
"""

from __future__ import annotations

from pgonce.offsets_store.errors import PgonceError


class TypeMappingError(PgonceError):
    """A column of the frame has a type that Postgres cannot hold, or that its target column cannot take."""

    shows_no_values = True


class EncodingError(PgonceError):
    """A value in the rows cannot be written to Postgres as it is."""


class StagingError(PgonceError):
    """A task could not stage its rows, or the staged rows are not those that were promised."""


class SparkError(PgonceError):
    """Spark is used in a way that cannot be exactly-once through pgonce."""

    shows_no_values = True


def without_data_sources() -> SparkError:
    """Say that this Spark has no data sources written in Python, and what works there."""
    return SparkError(
        "SPARK_TOO_OLD",
        'format("pgonce") needs PySpark 4.0 or newer: older ones have no data sources that are written in Python.',
        "Nothing was written.",
        "Use foreachBatch(PostgresBatchWriter(url, table=...)) or transactional_batch, which also work on PySpark 3.5.",
    )
