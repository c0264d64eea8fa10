"""How many lines stand between a user and the sentence that says what happened."""

from __future__ import annotations

import json
import re
import traceback

import pytest
from pyspark.errors import PySparkException
from support.patience import PATIENCE_SECONDS

from pgonce import PostgresBatchWriter, transactional_batch

pytestmark = pytest.mark.spark

TOO_SHORT = "CREATE TABLE events (id bigint, name varchar(2))"
OUR_FRAME = re.compile(r'File "[^"]*/pgonce/(sink|offsets_store)/')


def sink(frame, url):
    """The data source."""
    return frame.writeStream.format("pgonce").options(url=url, table="events")


def writer(frame, url):
    """The writer for one table."""
    return frame.writeStream.foreachBatch(PostgresBatchWriter(url, table="events"))


def append_events(batch, tx):
    """A function of a user's."""
    tx.append(batch, "events")


def function(frame, url):
    """A function of one's own."""
    return frame.writeStream.foreachBatch(transactional_batch(url, name="events")(append_events))


def close_the_shop(batch, tx):
    """A function whose error has nothing to do with pgonce."""
    raise ValueError("[CLOSED] the shop is closed")


def failing_function(frame, url):
    """A function with an error of its own."""
    return frame.writeStream.foreachBatch(transactional_batch(url, name="events")(close_the_shop))


def with_nul(frame):
    """Rows that no task can encode."""
    return frame.selectExpr("id", "name || char(0) AS name")


@pytest.mark.parametrize(
    ("way_in", "ddl", "changed", "code", "sentence_by_line", "lines"),
    [
        pytest.param(sink, "SELECT", None, "TARGET_MISSING", 1, 35, id="planning"),
        pytest.param(sink, TOO_SHORT, with_nul, "NUL_IN_TEXT", 1, 35, id="task"),
        pytest.param(sink, TOO_SHORT, None, "VALUE_NOT_STORABLE", 1, 35, id="commit"),
        pytest.param(writer, TOO_SHORT, None, "VALUE_NOT_STORABLE", 10, 55, id="writer"),
        pytest.param(function, TOO_SHORT, None, "VALUE_NOT_STORABLE", 12, 60, id="function"),
        pytest.param(failing_function, TOO_SHORT, None, "CLOSED", 12, 60, id="own"),
    ],
)
def test_the_sentence_comes_first_and_no_frame_of_ours_is_shown(
    way_in, ddl, changed, code, sentence_by_line, lines, spark, admin, url, tmp_path, checkpoint
):
    """What Spark puts around it is Spark's; of ours there is the sentence, and of the user's the line that called."""
    admin.execute(ddl)
    source = tmp_path / "source"
    source.mkdir()
    (source / "1.json").write_text(json.dumps({"id": 1, "name": "long"}))
    frame = spark.readStream.schema("id long, name string").json(str(source))
    stream = way_in(changed(frame) if changed else frame, url).option("checkpointLocation", checkpoint)
    query = stream.trigger(availableNow=True).start()
    with pytest.raises(PySparkException) as raised:
        query.awaitTermination(PATIENCE_SECONDS)
    uncaught = "".join(traceback.format_exception(raised.value))
    told = str(query.exception())
    assert OUR_FRAME.search(uncaught) is None, uncaught
    assert len(uncaught.splitlines()) <= lines, uncaught
    first = next(n for n, line in enumerate(told.splitlines(), 1) if f"[{code}]" in line)
    assert first <= sentence_by_line, told
    if way_in in (function, failing_function):
        assert way_in is function or "in close_the_shop" in uncaught
        assert way_in is failing_function or "in append_events" in uncaught
