"""A standalone cluster: master, workers, executors and driver are processes of their own, and rows still come once."""

from __future__ import annotations

import json

import pytest

JOB = """
import sys
from pyspark.sql import SparkSession
url, table, checkpoint, source, inline_bytes = sys.argv[1:]
builder = SparkSession.builder.appName("cluster").master("local-cluster[2,1,1024]")
for name, value in SETTINGS.items():
    if name != "spark.master":
        builder = builder.config(name, value)
spark = builder.getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
frame = spark.readStream.schema("id long, name string").json(source).repartition(4)
query = (
    frame.writeStream.format("pgonce")
    .options(url=url, table=table, createTable="true", inlineBytes=inline_bytes, checkpointLocation=checkpoint)
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
spark.stop()
"""


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("inline_bytes", ["8388608", "0"])
def test_a_cluster_of_separate_processes_writes_every_row_once(inline_bytes, tcp_url, observer, start_driver, tmp_path):
    """Executors that are processes of their own send rows inline, or stage them over their own connections."""
    from fix_spark import spark_settings

    source = tmp_path / "source"
    source.mkdir()
    rows = [{"id": n, "name": f"name {n}"} for n in range(1000)]
    (source / "1.json").write_text("\n".join(map(json.dumps, rows)))
    settings = spark_settings(tmp_path, kafka=False)
    job = tmp_path / "job.py"
    job.write_text(f"SETTINGS = {settings!r}\n{JOB}")
    driver = start_driver(job, tcp_url, "events", str(tmp_path / "checkpoint"), str(source), inline_bytes)
    assert driver.wait(180) == 0, driver.output()
    assert observer.execute("SELECT count(*), count(DISTINCT id), sum(id) FROM events").fetchone() == (
        1000,
        1000,
        sum(range(1000)),
    )
    transport = "inline" if inline_bytes != "0" else "staged"
    assert observer.execute("SELECT rows, transport FROM pgonce.batches").fetchall() == [(1000, transport)]
