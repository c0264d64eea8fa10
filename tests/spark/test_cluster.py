"""A standalone cluster: master, workers, executors and driver are processes of their own, and rows still come once."""

from __future__ import annotations

import json

import pytest
from fix_spark import spark_settings

JOB = """
import sys
from pyspark.sql import SparkSession

url, source, checkpoint = sys.argv[1:]
builder = SparkSession.builder.appName("cluster")
for name, value in SETTINGS.items():
    builder = builder.config(name, value)
spark = builder.config("spark.master", "local-cluster[2,1,1024]").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
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
    job.write_text(f"SETTINGS = {spark_settings(tmp_path, kafka=False)!r}\n{JOB}")
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
