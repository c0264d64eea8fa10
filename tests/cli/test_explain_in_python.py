"""What `pgonce.explain` says of queries, exceptions and codes."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as f
from support.patience import PATIENCE_SECONDS

from pgonce import PostgresBatchWriter, explain
from pgonce.offsets_store.errors import NOTHING, CommitError

LOCKED = CommitError("LOCKED", "Batch 3 waited 30 s for a lock.", NOTHING, "End that session or wait for it.")


def test_an_error_of_ours():
    """What happened, what it means for the data, what to do, and where more is said."""
    text = explain(LOCKED)
    assert text.startswith("[LOCKED] ")
    sentences = [LOCKED.what, NOTHING, LOCKED.remedy, "pgonce explain LOCKED"]
    places = [" ".join(text.split()).find(sentence) for sentence in sentences]
    assert -1 not in places
    assert places == sorted(places)


def test_the_text_of_one():
    """Frames and Spark's own words are left out."""
    frames = 'Traceback (most recent call last):\n  File "x.py", line 1'
    text = f"{frames}\npgonce.offsets_store.errors.CommitError: {LOCKED}\n"
    assert explain(text) == explain(LOCKED)
    assert explain(RuntimeError(text)) == explain(LOCKED)


def test_a_code_is_explained_as_the_command_explains_it():
    """The entry of the documents, as the command shows it."""
    assert explain("locked").startswith("LOCKED (")
    assert "There is LOCKED" in explain("LOKED")


def test_an_error_that_is_not_ours():
    """It says so, with its first line and what it means for the data."""
    text = explain(ValueError("no such thing\nand more"))
    assert "not an error of pgonce" in text
    assert "no such thing" in text
    assert "and more" not in text


def test_a_notebook_shows_it_as_it_reads():
    """Not as a literal with escapes."""
    assert repr(explain(LOCKED)) == str(explain(LOCKED))


class TestQueries:
    @pytest.mark.spark
    @pytest.mark.parametrize("way", ["sink", "writer"])
    def test_a_query_that_has_failed(self, spark, url, admin, checkpoint, way):
        """The sentence of what ended it, without frames, by each way in."""
        admin.execute("CREATE TABLE events (value bigint CHECK (value < 0))")
        frame = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 2).load().select(f.col("value"))
        writer = frame.writeStream.option("checkpointLocation", checkpoint)
        if way == "sink":
            query = writer.format("pgonce").option("url", url).option("table", "events").start()
        else:
            query = writer.foreachBatch(PostgresBatchWriter(url, table="events")).start()
        with pytest.raises(Exception, match="CHECK_VIOLATION"):
            query.awaitTermination(PATIENCE_SECONDS)
        text = explain(query)
        assert text.startswith("[CHECK_VIOLATION] ")
        assert "File " not in text
        assert "\tat " not in text
        assert text.splitlines()[-1] == "More: pgonce explain CHECK_VIOLATION"

    @pytest.mark.spark
    def test_a_query_that_has_not_failed(self, spark, checkpoint):
        """It runs, or was stopped."""
        frame = spark.readStream.format("rate").load()
        query = frame.writeStream.format("noop").option("checkpointLocation", checkpoint).queryName("well").start()
        try:
            assert explain(query) == "Query well runs, and nothing has gone wrong in this run."
        finally:
            query.stop()
        assert "ended without an error" in explain(query)
