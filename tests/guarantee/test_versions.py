"""
An installed pgonce on the PySpark that is installed, of any version.

Covers: sink.data_source.spark_interface, sink.encoding.encoded_types.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
from importlib.util import find_spec

import pyspark
import pytest
from support.inbox import Inbox, create_events, events
from support.patience import PATIENCE_SECONDS

import pgonce

HAS_DATA_SOURCES = find_spec("pyspark.sql.datasource") is not None

# What PySpark 3.5 is to Python: a package without this module.
WITHOUT_DATA_SOURCES = """
import sys
sys.modules["pyspark.sql.datasource"] = None
import pgonce
for name in pgonce.__all__:
    getattr(pgonce, name)
try:
    import pyspark_pgonce
except ImportError as error:
    print(error)
"""

# What they have that is older than 4.1.
WITHOUT_NEWER_TYPES = """
from pyspark.sql import types as t
for name in ("CalendarIntervalType", "TimeType", "VariantType"):
    if hasattr(t, name):
        delattr(t, name)
from pgonce.sink.encoding.encoded_types import encoded_columns
fields = [t.StructField("tags", t.ArrayType(t.StringType())), t.StructField("detail", t.StructType())]
print(*(column.postgres_type for column in encoded_columns(t.StructType(fields))))
"""


def said_by(program: str) -> str:
    """What this Python prints that runs the program."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_all_public_names_can_be_imported():
    """Whatever this PySpark lacks, no public name needs it when it is imported."""
    assert [name for name in pgonce.__all__ if getattr(pgonce, name) is None] == []


def test_a_spark_without_python_data_sources_is_named():
    """There, all else can be imported, and the data source's error says which PySpark it needs, and what works."""
    said = said_by(WITHOUT_DATA_SOURCES)
    assert said.startswith("[SPARK_TOO_OLD]")
    assert "PySpark 4.0 or newer" in said
    assert "PostgresBatchWriter" in said


def test_a_client_of_a_server_that_is_too_old_is_told_so(monkeypatch):
    """PySpark 3.5 sends the function to its server, but not if it is ours: the reason would be lost there."""
    writer = pgonce.PostgresBatchWriter("", table="events", checkpoint_location="/checkpoint")
    if HAS_DATA_SOURCES:
        assert pickle.loads(pickle.dumps(writer))
        monkeypatch.setattr(pyspark, "__version__", "3.5.9")
    with pytest.raises(pgonce.PgonceError, match=r"\[SPARK_TOO_OLD\].*Connect"):
        pickle.dumps(writer)


def test_a_spark_without_the_newest_types_encodes_all_others():
    """Where Python does not know variant, time or calendar intervals, no column can have them, and the others work."""
    assert said_by(WITHOUT_NEWER_TYPES) == "text[] jsonb\n"


@pytest.mark.spark
def test_a_sink_is_found_where_spark_has_such_sinks(spark, url, checkpoint, tmp_path):
    """``recover_and_start`` of a sink starts it; an older Spark says that it does not find it."""
    create_events(url, "events", keyed=False)
    inbox = Inbox(tmp_path / "inbox")
    inbox.add(10)
    stream = events(spark, inbox.folder).writeStream.format("pgonce").options(url=url, table="events")
    if HAS_DATA_SOURCES:
        query = pgonce.recover_and_start(stream.trigger(availableNow=True), checkpoint, url)
        assert query.awaitTermination(PATIENCE_SECONDS)
        return
    with pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        pgonce.recover_and_start(stream, checkpoint, url)
