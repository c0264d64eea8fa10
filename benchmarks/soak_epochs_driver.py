"""
The driver that is soaked by epochs: one continuous query, until it is killed.

Runs in: a process of its own, so that its growth is not mixed with the watcher's.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from latency_cases import Feed, in_real_time
from pyspark.sql import SparkSession


def main(job: dict[str, Any]) -> None:
    """Run it; epochs are as short as Spark can commit them."""
    builder = SparkSession.builder.appName("pgonce-soak-epochs")
    for name, value in job["spark"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    feed = Feed(spark, job["servers"], job["topic"], job["url"], job["table"], job["checkpoint"])
    in_real_time("soaked", continuous="100 milliseconds").start(feed).awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
