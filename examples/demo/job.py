"""
The streaming job that `make demo` kills: JSON orders, from files or from Kafka, into the table `orders`.

Runs as the Spark driver, and knows nothing of the demo. Nothing in it is about restarts: the same command line starts
it the first time and after every crash.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark's documentation has it)

ORDER = "order_id BIGINT, customer STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP"


def orders_from_files(spark: SparkSession, directory: str) -> DataFrame:
    return spark.readStream.schema(ORDER).option("maxFilesPerTrigger", 8).json(directory)


def orders_from_kafka(spark: SparkSession, servers: str, topic: str) -> DataFrame:
    messages = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", 1500)
        .load()
    )
    return messages.select(F.from_json(F.col("value").cast("string"), ORDER).alias("order")).select("order.*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="Postgres, as libpq takes it")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--files", help="a directory of JSON files")
    parser.add_argument("--kafka", nargs=2, metavar=("SERVERS", "TOPIC"))
    parser.add_argument("--until-caught-up", action="store_true", help="end once all present orders are stored")
    given = parser.parse_args()

    spark = SparkSession.builder.appName("orders").getOrCreate()
    orders = orders_from_kafka(spark, *given.kafka) if given.kafka else orders_from_files(spark, given.files)
    query = (
        orders.writeStream.format("pgonce")
        .option("url", given.url)
        .option("table", "orders")
        .option("createTable", "true")
        .option("checkpointLocation", given.checkpoint)
        .queryName("orders")
        .trigger(**({"availableNow": True} if given.until_caught_up else {"processingTime": "0 seconds"}))
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
