"""
A user's own modules are in the folder of the job, and have the names of our folders.

Covers what is installed: one package, so that none of its modules can be taken for one of the user's. Spark's Python
workers look into the driver's directory first, as the driver itself does.
"""

from __future__ import annotations

import json

import psycopg
import pytest
from support.fixtures.spark import spark_settings

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# What a job of somebody else's might well have. The second is a package, and has a module called as one of ours.
BESIDE = {
    "sink.py": "def renamed(name):\n    return 'mine ' + name\n",
    "offsets_store/__init__.py": "SUFFIX = ' too'\n",
    "offsets_store/errors.py": "class PgonceError(RuntimeError):\n    pass\n",
    "settings.py": "TABLE = 'events'\n",
}

JOB = """
import json
import sys

import sink
from offsets_store import SUFFIX
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from pgonce import PostgresBatchWriter, transactional_batch

url, folder, spark_settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
builder = SparkSession.builder
for name, value in spark_settings.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()


@udf("string")
def named(word):
    import sink

    return sink.renamed(word) + SUFFIX


@transactional_batch(url, name="function")
def write(batch, tx):
    tx.append(batch, "by_function")


words = spark.readStream.schema("id bigint, name string").json(f"{folder}/in")
frame = words.select("id", named("name").alias("name"))
ways = {
    "by_sink": lambda stream: stream.format("pgonce").options(
        url=url, table="by_sink", inlineBytes="1", receiver="off"
    ),
    "by_writer": lambda stream: stream.foreachBatch(PostgresBatchWriter(url, table="by_writer")),
    "by_function": lambda stream: stream.foreachBatch(write),
}
for name, way in ways.items():
    stream = way(frame.writeStream.queryName(name)).option("checkpointLocation", f"{folder}/checkpoints/{name}")
    stream.trigger(availableNow=True).start().awaitTermination()
print("sink is", sink.__file__)
spark.stop()
"""


def test_a_users_own_sink_and_offsets_store_break_nothing(tmp_path, start_driver, tcp_url, observer):
    """Driver, tasks and the commit worker find both: the user's modules for the user, and ours for us."""
    for name, text in {**BESIDE, "job.py": JOB}.items():
        file = tmp_path / "job" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "words.json").write_text("".join(f'{{"id": {i}, "name": "n{i}"}}\n' for i in range(100)))
    tables = ("by_sink", "by_writer", "by_function")
    with psycopg.connect(tcp_url, autocommit=True) as admin:
        for table in tables:
            admin.execute(f"CREATE TABLE {table} (id bigint, name text)")

    # As a shell starts it: with the script's directory on the path, which the tests otherwise keep away.
    env = {"PYTHONSAFEPATH": "", "PYTHONPATH": str(tmp_path / "job")}
    settings = json.dumps(spark_settings(tmp_path, kafka=False))
    driver = start_driver(tmp_path / "job" / "job.py", tcp_url, str(tmp_path), settings, env=env)

    assert driver.wait() == 0, driver.output()
    assert f"sink is {tmp_path / 'job' / 'sink.py'}" in driver.output()
    for table in tables:
        found = observer.execute(f"SELECT id, name FROM {table} ORDER BY id").fetchall()
        assert found == [(i, f"mine n{i} too") for i in range(100)], table
