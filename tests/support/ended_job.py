"""
A driver whose query is in its first batch until the driver ends: by a signal, or when a file appears.

Runs in: a process of its own. Its argument is JSON: a connection string, Spark's settings, and a folder.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame
from support.spark_session import started_session

import pgonce


def main(url: str, settings: dict[str, str], folder: str) -> None:
    """Start the query; its batch goes on for longer than the test does."""
    session = started_session("ended", settings)
    pgonce.watch(session, url)

    def never_ends(_: DataFrame, __: int) -> None:
        time.sleep(600)

    written = session.readStream.format("rate").load().writeStream.foreachBatch(never_ends).queryName("orders")
    written.option("checkpointLocation", f"{folder}/checkpoint").start()
    while not Path(folder, "end").exists():
        time.sleep(0.1)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
