"""Rows of a frame that cannot be encoded are found while the others are, afresh in every try."""

from __future__ import annotations

import itertools
import json

import pytest
from support.with_rooms import arriving_rows

from pgonce.offsets_store.errors import ConfigurationError
from pgonce.sink.encoding.copy_encoder import body_rows
from pgonce.sink.errors import EncodingError
from pgonce.sink.options.destination import destination
from pgonce.sink.options.position_columns import PositionColumns

pytestmark = pytest.mark.spark

ROWS, BAD = 1000, [7, 501, 998]
COLUMNS = ["id", f"if(id IN {tuple(BAD)}, concat('a', char(0)), concat('name ', id)) AS name"]
PLACE = ["'t' AS topic", "0 AS partition", "id AS offset"]


@pytest.fixture
def frame(spark):
    """Rows of two tasks, in Arrow batches of 100, three of which are bad."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 100)
    yield spark.range(0, ROWS, 1, 2).selectExpr(*COLUMNS)
    spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")


def into(**options):
    """Where the rows go, with dead letters."""
    return destination("events", dead_letters=True, **options)


def encoded(rows):
    """How many rows the bodies have."""
    return sum(1 for body in rows.bodies() for _ in body_rows(memoryview(body)))


def put_aside(rows):
    """The ids of the rows that are put aside, in order."""
    return sorted(json.loads(row.row_data)["id"] for row in rows.unfit())


def test_each_try_finds_them_afresh(frame):
    """However often the bodies are read, to the end or not, each bad row is put aside once and not counted."""
    with arriving_rows(frame, into()) as rows:
        for _ in range(3):
            assert encoded(rows) == ROWS - len(BAD)
            assert put_aside(rows) == BAD
            assert rows.count() == ROWS - len(BAD)
            list(itertools.islice(rows.bodies(), 3))
            assert put_aside(rows) == BAD


def test_those_that_are_stored_already_are_not_put_aside(frame):
    """A row below the stored positions is dropped, good or bad; those that are left carry their place."""
    positions = PositionColumns("topic", "partition", "offset", written=False)
    with arriving_rows(frame.selectExpr("*", *PLACE), into(), positions) as rows:
        later = rows.since({"0": {"t": {"0": 501}}})
        assert encoded(later) == later.count() == ROWS - 501 - 2
        assert put_aside(later) == put_aside(rows) == [501, 998]
        assert sorted(row.place for row in later.unfit()) == [("t", 0, 501), ("t", 0, 998)]
        # All others of the batch are those that were stored before.
        assert rows.count() - later.count() == 501
        assert set(json.loads(later.unfit()[0].row_data)) == {"id", "name"}


def test_images_before_updates_are_neither_counted_nor_put_aside(spark):
    """What the change reader drops is no row, even if it is bad."""
    changes = spark.createDataFrame(
        [(1, "a\0", "update_preimage"), (1, "b", "update_postimage"), (2, "c\0", "insert")],
        "id long, name string, _change_type string",
    )
    with arriving_rows(changes, into(mode="apply", keys=["id"], change_feed="delta")) as rows:
        assert encoded(rows) == rows.count() == 1
        assert put_aside(rows) == [2]


@pytest.mark.parametrize("written", [True, False])
def test_a_source_table_whose_column_has_the_name_of_a_position_column_is_refused(spark, written):
    """Before any job runs: its image would have two columns of one name, and neither would be written."""
    row = "struct<id: bigint, offset: bigint>"
    changes = spark.createDataFrame(
        [(None, (1, 70), "c", "t", 0, 3)],
        f"before {row}, after {row}, op string, topic string, partition int, offset bigint",
    )
    positions = PositionColumns("topic", "partition", "offset", written=written)
    into_table = into(mode="apply", keys=["id"], change_feed="debezium")
    refused = pytest.raises(ConfigurationError, match=r"POSITION_COLUMNS.*'offset'.* after\b")
    with refused, arriving_rows(changes, into_table, positions):
        pass


@pytest.mark.parametrize("most", [1, None])
def test_too_many_stop_the_batch(most, frame):
    """With a bound that is too small, and without dead letters, the bodies end in an error."""
    where = into(max_dead_letters=most) if most else destination("events")
    with arriving_rows(frame, where) as rows, pytest.raises(EncodingError, match="NUL_IN_TEXT") as caught:
        encoded(rows)
    assert ("maxDeadLetters" in str(caught.value)) is (most is not None)
