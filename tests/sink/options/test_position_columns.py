"""Position columns are one column each, and of Kafka's types, among the rows that a change feed becomes."""

from __future__ import annotations

import pytest
from pyspark.sql import types as t
from support.data_source_with_rooms import plan_batch
from support.typed_rows import struct_of

from pgonce.offsets_store.errors import ConfigurationError

PLACE = {"topic": t.StringType(), "partition": t.IntegerType(), "offset": t.LongType()}
KAFKAS = {f"kafka_{name}": data_type for name, data_type in PLACE.items()}


def changes(image, beside):
    """The columns of Debezium's events, with those of the table in ``image``."""
    row = struct_of(image)
    return struct_of({"before": row, "after": row, "op": t.StringType(), **beside})


def plan(struct_type, names, **options):
    """Plan a batch whose rows have these columns."""
    given = {
        "url": "postgresql://nowhere.invalid/",
        "table": "events",
        "checkpointLocation": "/nowhere",
        "positionColumns": ",".join(names),
        "writePositions": "false",
        **options,
    }
    return plan_batch(given, struct_type, overwrite=False, looks=False)


FEED = {"mode": "apply", "changeFeed": "debezium"}


@pytest.mark.parametrize("name", PLACE)
def test_a_column_of_the_source_table_may_not_have_the_name_of_one(name):
    """Neither where a row comes from would be known then, nor would the column of the table be written."""
    image = {"id": t.LongType(), name: PLACE[name]}
    with pytest.raises(ConfigurationError, match=rf"POSITION_COLUMNS.*{name!r}.* after\b"):
        plan(changes(image, PLACE), PLACE, **FEED)
    _, writer = plan(changes(image, KAFKAS), KAFKAS, **FEED)
    assert [column.name for column in writer.columns][:2] == ["id", name]


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ([*PLACE.items(), ("offset", t.LongType())], "'offset'.* bigint and bigint "),
        ([*PLACE.items(), ("topic", t.LongType())], "'topic'.* string and bigint "),
        ([*PLACE.items()][:2], "'offset'.* not have"),
        ([*[*PLACE.items()][:2], ("offset", t.StringType())], "'offset'.* string "),
    ],
    ids=["twice", "twice, of two types", "missing", "of another type"],
)
def test_each_is_there_once_and_of_its_type(columns, says):
    """Arrow does not find a column by its name if there are two."""
    struct_type = t.StructType([t.StructField(*column) for column in [("id", t.LongType()), *columns]])
    with pytest.raises(ConfigurationError, match=f"POSITION_COLUMNS.*{says}"):
        plan(struct_type, PLACE)
