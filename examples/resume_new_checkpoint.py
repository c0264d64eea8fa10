"""
The checkpoint is gone: go on in a new one, at the offsets that Postgres holds.

A query named `orders` read Kafka and wrote the table `orders` through `format("pgonce")`, as demo/job.py does. Its
offsets were committed with its rows, so its successor starts right after the last row that is there. Without
`replaces`, pgonce would refuse a second query from the same topic into the same table. Started again, this program
goes on in its own checkpoint; if that is lost too, start it with another one.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/resume_new_checkpoint.py \
        --servers broker:9092 --query orders --checkpoint new-checkpoint --url postgresql://localhost/shop
"""

import argparse
import os

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as in Spark's own documentation)

from pgonce import OffsetsStore

parser = argparse.ArgumentParser(description="Go on in a new checkpoint, at the offsets that Postgres holds.")
parser.add_argument("--servers", default=os.environ.get("KAFKA_SERVERS", "localhost:9092"))
parser.add_argument("--topic", default="orders")
parser.add_argument("--query", default="orders", help="the name of the query to continue")
parser.add_argument("--checkpoint", default="new-checkpoint", help="the new query's checkpoint")
parser.add_argument("--url", default="", help="Postgres, as libpq takes it; else libpq's environment (PGHOST ...)")
parser.add_argument("--until-caught-up", action="store_true", help="end once all orders that are there now are stored")
given = parser.parse_args()

ORDER = "order_id BIGINT, customer STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP"

store = OffsetsStore(given.url)
old = store.latest(given.query)
starting_offsets = store.starting_offsets(given.query, bootstrap_servers=given.servers)
print(f"Query {old.query_id} ended with batch {old.batch_id}; its successor starts at {starting_offsets}.")

spark = SparkSession.builder.appName("orders").getOrCreate()

messages = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", given.servers)
    .option("subscribe", given.topic)
    .option("startingOffsets", starting_offsets)
    .load()
)
orders = messages.select(F.from_json(F.col("value").cast("string"), ORDER).alias("order")).select("order.*")

query = (
    orders.writeStream.format("pgonce")
    .option("url", given.url)
    .option("table", "orders")
    .option("replaces", old.query_id)
    .option("checkpointLocation", given.checkpoint)
    .queryName(given.query)
    .trigger(**({"availableNow": True} if given.until_caught_up else {"processingTime": "1 second"}))
    .start()
)
query.awaitTermination()
