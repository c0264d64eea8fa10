"""A standalone cluster: master, workers, executors and driver are processes of their own, and rows still come once."""

from __future__ import annotations

import json

import pytest
from support.fixtures.spark import spark_settings

BEFORE = """
import sys
from pyspark.sql import SparkSession

url, source, checkpoint = sys.argv[1:]
builder = SparkSession.builder.appName("cluster")
for name, value in SETTINGS.items():
    builder = builder.config(name, value)
spark = builder.config("spark.master", MASTER).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
"""

JOB = """
for table, inline_bytes, receiver in (("inline", "8388608", "off"), ("staged", "0", "off"), ("received", "0", "auto")):
    frame = spark.readStream.schema("id long, name string").json(source).repartition(4)
    (
        frame.writeStream.format("pgonce")
        .options(url=url, table=table, createTable="true", inlineBytes=inline_bytes, receiver=receiver)
        .option("checkpointLocation", f"{checkpoint}/{table}")
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_a_cluster_of_separate_processes_writes_every_row_once(tcp_url, observer, start_driver, tmp_path):
    """Executors that are processes of their own send rows inline, over connections of their own, and to the driver."""
    source = tmp_path / "source"
    source.mkdir()
    rows = [{"id": n, "name": f"name {n}"} for n in range(1000)]
    (source / "1.json").write_text("\n".join(map(json.dumps, rows)))
    job = tmp_path / "job.py"
    settings = spark_settings(tmp_path, kafka=False)
    job.write_text(f"MASTER = 'local-cluster[2,1,1024]'\nSETTINGS = {settings!r}\n{BEFORE}{JOB}")
    driver = start_driver(job, tcp_url, str(source), str(tmp_path / "checkpoint"))
    assert driver.wait() == 0, driver.output()
    for transport in ("inline", "received", "staged"):
        found = observer.execute(f"SELECT id, name FROM {transport} ORDER BY id".encode()).fetchall()
        assert found == [(row["id"], row["name"]) for row in rows]
    assert observer.execute("SELECT rows, transport FROM pgonce.batches ORDER BY 2").fetchall() == [
        (1000, "inline"),
        (1000, "received"),
        (1000, "staged"),
    ]


# What an executor's Python runs when it starts, told by a file what it is to lack.
LACKING = """
import importlib.metadata, pathlib, sys

class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name == "pgonce" and pathlib.Path(LACKS).read_text() == "pgonce":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

found = importlib.metadata.version
importlib.metadata.version = lambda name: "0.0.9" if name == "pgonce" else found(name)
sys.meta_path.insert(0, Lacking())
"""

LACKING_JOB = """
import pathlib
for lack in ("pgonce", "this version"):
    pathlib.Path(LACKS).write_text(lack)
    frame = spark.readStream.schema("id long, name string").json(source)
    options = {"url": url, "table": "events", "createTable": "true", "checkpointLocation": f"{checkpoint}/{lack}"}
    query = frame.writeStream.format("pgonce").options(**options).trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    except Exception:
        print("SAYS", str(query.exception()).splitlines()[0], flush=True)
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
def test_an_executor_that_lacks_pgonce_says_what_is_missing_where(tcp_url, observer, start_driver, tmp_path):
    """In the first line of the query's error, with the way out; and so where its version is another."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "1.json").write_text(json.dumps({"id": 1, "name": "name 1"}))
    lacks = f"LACKS = {str(tmp_path / 'lacks')!r}\n"
    path = tmp_path / "path"
    path.mkdir()
    (path / "sitecustomize.py").write_text(lacks + LACKING)
    settings = {**spark_settings(tmp_path, kafka=False), "spark.executorEnv.PYTHONPATH": str(path)}
    job = tmp_path / "job.py"
    job.write_text(f"{lacks}MASTER = 'local-cluster[1,1,1024]'\nSETTINGS = {settings!r}\n{BEFORE}{LACKING_JOB}")
    driver = start_driver(job, tcp_url, str(tmp_path / "source"), str(tmp_path / "checkpoint"))
    assert driver.wait() == 0, driver.output()
    missing, other_version = [line for line in driver.output().splitlines() if line.startswith("SAYS")]
    assert "[NOT_ON_EXECUTORS]" in missing
    assert "No module named 'pgonce'" in missing
    assert "Help: Install pgonce" in missing
    assert "[OTHER_VERSION]" in other_version
    assert "has 0.0.9" in other_version
    assert observer.execute("SELECT to_regclass('events')").fetchone() == (None,)
