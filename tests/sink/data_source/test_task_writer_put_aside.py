"""Rows that cannot be encoded do not fail their task, and come to the commit by every way that the others take."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from support.data_source_with_rooms import receiver_for
from support.ledger_history import QUERY, RUN
from support.received_batch import origin

from pgonce.sink.data_source.commit_parcels import promise
from pgonce.sink.data_source.offer import offered
from pgonce.sink.data_source.promise import promised_rows
from pgonce.sink.data_source.task_writer import MicroBatch, TaskWriter
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.planned_batch import staging_table
from pgonce.sink.options.routes import where_to
from pgonce.sink.read_rows import AllRows

pytestmark = pytest.mark.spark

ROWS = 1000
BAD = (7, 501, 998)
COLUMNS = [
    "id",
    f"CASE WHEN id IN {BAD[:2]} THEN concat('a', char(0)) WHEN id = {BAD[2]} THEN cast(unhex('FF') AS string) "
    "ELSE concat('name ', id) END AS name",
]
PLACE = ["'t' AS topic", "cast(id % 2 AS int) AS partition", "id DIV 2 AS offset"]
# Where the rows of two tasks go.
WAYS = {"inline": {"inlineBytes": "1000000", "receiver": "off"}, "staged": {"receiver": "off"}, "received": {}}


@pytest.fixture
def parcels_of(spark):
    """What two tasks of batch 1 hand to the commit, with these options and columns; they get 100 rows at a time."""

    def run(options, columns):
        frame = spark.range(0, ROWS, 1, 2).selectExpr(*columns)
        written = TaskWriter(options, AllRows(frame.schema), MicroBatch(None)).written_type
        writer = TaskWriter(
            options, AllRows(frame.schema), MicroBatch(origin().planned), offered(receiver_for(options, written))
        )

        def write(batches):
            yield pa.record_batch({"parcel": [pickle.dumps(writer.write(batches))]})

        properties = {"sql.streaming.queryId": QUERY, "streaming.sql.batchId": "1", "spark.jobGroup.id": RUN}
        for name, value in properties.items():
            spark.sparkContext.setLocalProperty(name, value)
        try:
            collected = frame.mapInArrow(write, "parcel binary").collect()
        finally:
            for name in properties:
                spark.sparkContext.setLocalProperty(name, None)
        return written, [pickle.loads(row.parcel) for row in collected]

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    yield run
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


@pytest.mark.parametrize("written", ["true", "false"])
@pytest.mark.parametrize("way", WAYS)
def test_their_places_are_asked_as_those_of_other_rows(way, written, target, receiver_options, parcels_of):
    """A batch reaches as far as its bad rows do, and those that are stored already are not put aside again."""
    options = receiver_options(
        deadLetters="true", positionColumns="topic,partition,offset", writePositions=written, **WAYS[way]
    )
    struct, parcels = parcels_of(options, [*COLUMNS, *PLACE])
    assert {parcel.ways for parcel in parcels} == {(way,)}
    half, whole = ROWS // 4, ROWS // 2
    assert [parcel.reach for parcel in parcels] == [
        {"t": {"0": (0, half), "1": (0, half)}},
        {"t": {"0": (half, whole), "1": (half, whole)}},
    ]
    table = staging_table(options, origin())
    rows = promised_rows(encoded_columns(struct), options.positions, promise(parcels), tuple, table)
    places = {n: ("t", n % 2, n // 2) for n in BAD}
    assert {json.loads(row.row_data)["id"]: row.place for row in rows.unfit()} == places
    assert all(("offset" in json.loads(row.row_data)) is (written == "true") for row in rows.unfit())
    later = rows.since({"0": {"t": {"0": 499, "1": 250}}})
    assert [json.loads(row.row_data)["id"] for row in later.unfit()] == [501, 998]


def test_more_than_max_dead_letters_fail_their_task(target, receiver_options, parcels_of):
    """Each task may put aside so many, and the error names the option."""
    options = receiver_options(deadLetters="true", maxDeadLetters="1", **WAYS["staged"])
    with pytest.raises(PySparkException, match=" 1 other rows "):
        parcels_of(options, COLUMNS)


def test_a_table_that_alone_has_dead_letters_is_enough(target, receiver_options, parcels_of):
    """The task puts each bad row aside; the commit sees which of them are of this table."""
    where = where_to(route="id", tables={"7": {}, "501": {"deadLetters": True}})
    _, parcels = parcels_of(replace(receiver_options(**WAYS["inline"]), destination=where), COLUMNS)
    assert sum(len(parcel.unfit) for parcel in parcels) == len(BAD)
