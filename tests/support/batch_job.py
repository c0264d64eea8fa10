"""
A batch job, as a scheduler runs it: in a driver of its own, or in pytest's.

Runs in: pytest, and in the drivers that tests start and kill. Invariant: a driver runs one job, prints ``done`` when
``save()`` has returned, and ends.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import DataFrame, SparkSession
from support.spark_session import started_session

ROWS = 40


def frame(session: SparkSession, rows: int = ROWS) -> DataFrame:
    """Rows with the ids from 0 on, in two partitions."""
    return session.range(0, rows, 1, 2).selectExpr("id", "concat('n', id) AS name")


def save(rows: DataFrame, url: str, key: str | None = "monday", mode: str = "append", **options: object) -> None:
    """Write a frame into ``events``."""
    given = {"url": url, "table": "events", **({} if key is None else {"batchKey": key})}
    more = {name: str(value) for name, value in options.items()}
    rows.write.format("pgonce").mode(mode).options(**given, **more).save()


def main(url: str, key: str, options: dict[str, str], settings: dict[str, str]) -> None:
    """Run the job."""
    session = started_session("pgonce-batch-job", settings, "OFF")
    save(frame(session), url, key, **options)
    print("done", flush=True)
    session.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4]))
