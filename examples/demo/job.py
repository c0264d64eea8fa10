"""
The streaming job that `make demo` kills: JSON orders, from files or from Kafka, into the table `orders`.

Runs as the Spark driver, and knows nothing of the demo. Nothing in it is about restarts: the same command line starts
it the first time and after every crash.
"""

from __future__ import annotations

import argparse
from typing import Any

import psycopg
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pgonce import topic_to_table

ORDER = "order_id BIGINT, customer STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP"
TABLE = "order_id bigint, customer text, amount numeric(10, 2), placed_at timestamptz"


def start_from_kafka(given: argparse.Namespace, spark: SparkSession, trigger: dict[str, Any]) -> StreamingQuery:
    with psycopg.connect(given.url) as connection:
        connection.execute(f"CREATE TABLE IF NOT EXISTS orders ({TABLE})")
    servers, topic = given.kafka
    return topic_to_table(
        spark,
        kafka={"kafka.bootstrap.servers": servers, "subscribe": topic, "maxOffsetsPerTrigger": 1500},
        url=given.url,
        table="orders",
        decode="json",
        checkpoint_location=given.checkpoint,
        query_name="orders",
        trigger=trigger,
    )


def start_from_files(given: argparse.Namespace, spark: SparkSession, trigger: dict[str, Any]) -> StreamingQuery:
    return (
        spark.readStream.schema(ORDER)
        .option("maxFilesPerTrigger", 8)
        .json(given.files)
        .writeStream.format("pgonce")
        .option("url", given.url)
        .option("table", "orders")
        .option("createTable", "true")
        .option("checkpointLocation", given.checkpoint)
        .queryName("orders")
        .trigger(**trigger)
        .start()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="Postgres, as libpq takes it")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--files", help="a directory of JSON files")
    parser.add_argument("--kafka", nargs=2, metavar=("SERVERS", "TOPIC"))
    parser.add_argument("--until-caught-up", action="store_true", help="end once all present orders are stored")
    given = parser.parse_args()

    spark = SparkSession.builder.appName("orders").getOrCreate()
    trigger: dict[str, Any] = {"availableNow": True} if given.until_caught_up else {"processingTime": "0 seconds"}
    query = (start_from_kafka if given.kafka else start_from_files)(given, spark, trigger)
    query.awaitTermination()


if __name__ == "__main__":
    main()
