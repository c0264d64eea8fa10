"""Where inline ends, and staged or received begins: exactly past inlineBytes, counted in encoded bytes."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.patience import PATIENCE_SECONDS

from pgonce.sink.encoding.copy_encoder import CopyEncoder

pytestmark = pytest.mark.spark

COLUMNS = "id long, name string"
ROWS = 100


@pytest.fixture
def source(spark, tmp_path):
    """A folder with one file, which is one batch of one partition."""
    folder = str(tmp_path / "source")
    spark.range(ROWS).selectExpr("id", "concat('name ', id) AS name").coalesce(1).write.json(folder)
    return folder


def encoded_size(spark, folder):
    """How many bytes the rows take as the body of a binary COPY."""
    struct_type = t.StructType([t.StructField("id", t.LongType()), t.StructField("name", t.StringType())])
    batches = spark.read.schema(COLUMNS).json(folder).toArrow().to_batches()
    return sum(len(CopyEncoder(struct_type).encode(batch)) for batch in batches)


@pytest.mark.parametrize(
    ("past_the_border", "receiver", "batch_rows", "transport"),
    [
        pytest.param(0, "off", 10_000, "inline", marks=pytest.mark.thorough),
        pytest.param(0, "off", 7, "inline", marks=pytest.mark.thorough),
        (1, "off", 10_000, "staged"),
        (1, "auto", 7, "received"),
    ],
)
def test_rows_travel_another_way_just_where_they_no_longer_fit(
    past_the_border, receiver, batch_rows, transport, spark, url, observer, source, checkpoint
):
    """One byte decides, whether the rows come in one Arrow batch or in many; all of them arrive either way."""
    inline_bytes = encoded_size(spark, source) - past_the_border
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", batch_rows)
    try:
        query = (
            spark.readStream.schema(COLUMNS)
            .json(source)
            .writeStream.format("pgonce")
            .options(url=url, table="events", createTable="true", inlineBytes=str(inline_bytes), receiver=receiver)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(PATIENCE_SECONDS)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert observer.execute("SELECT rows, transport FROM pgonce.batches").fetchall() == [(ROWS, transport)]
    assert observer.execute("SELECT id, name FROM events ORDER BY id").fetchall() == [
        (n, f"name {n}") for n in range(ROWS)
    ]
    assert observer.execute("SELECT count(*) FROM pgonce.staged_tables").fetchone() == (0,)
