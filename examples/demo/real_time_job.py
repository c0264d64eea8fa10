"""
The streaming job that `make demo REAL_TIME=1` kills: JSON orders from Kafka into the table `orders`, in real time.

Runs as the Spark driver, and knows nothing of the demo. Nothing in it is about restarts: the same command line starts
it the first time and after every crash.
"""

from __future__ import annotations

import argparse

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as all of Spark's documentation has it)

import pgonce

ORDER = "order_id BIGINT, customer STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP"


def orders(messages: DataFrame) -> DataFrame:
    order = F.from_json(F.col("value").cast("string"), ORDER).alias("order")
    return messages.select("topic", "partition", "offset", order).select("topic", "partition", "offset", "order.*")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", required=True, help="Postgres, as libpq takes it, with a host")
    parser.add_argument("--checkpoint", required=True)
    parser.add_argument("--kafka", nargs=2, metavar=("SERVERS", "TOPIC"), required=True)
    given = parser.parse_args()
    servers, topic = given.kafka

    spark = SparkSession.builder.appName("orders").getOrCreate()
    query = pgonce.start_real_time(
        spark,
        kafka={"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"},
        rows=orders,
        url=given.url,
        table="orders",
        create_table=True,
        write_positions=False,
        checkpoint_location=given.checkpoint,
        query_name="orders",
        real_time="1 minute",
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
