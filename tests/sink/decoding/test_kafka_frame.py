"""Records are decoded from Spark's Kafka source as it comes, and from nothing else."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.decoded_rows import KAFKA, where_records_go
from support.with_rooms import reader_of

from pgonce.offsets_store.errors import ConfigurationError


@pytest.mark.parametrize(
    ("frame", "options"),
    [
        (t.StructType(KAFKA.fields[1:]), {}),
        (t.StructType([t.StructField("value", t.StringType()), *KAFKA.fields[2:]]), {}),
        (KAFKA, {"kafka_columns": {"trace": "headers.trace"}}),
    ],
    ids=["without a key", "with a text as value", "without headers"],
)
def test_another_frame_is_refused(frame, options):
    """Before a row moves; a header needs the source's option includeHeaders."""
    with pytest.raises(ConfigurationError, match="CHANGE_COLUMNS"):
        reader_of(where_records_go(table="t", **options), frame)


def test_the_commit_worker_reads_no_record_and_asks_for_no_table():
    """Parcels say which columns their rows have."""
    assert reader_of(where_records_go(table="t"), KAFKA, with_positions=False).struct_type.fields == []
