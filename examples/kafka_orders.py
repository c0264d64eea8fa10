"""
Kafka orders into three Postgres tables, in one transaction for each batch.

Each batch appends its orders, upserts every customer's newest order, and adds to the totals of its days. All of it is
committed together with the batch's Kafka offsets, or not at all: a total never counts an order twice, however often
the driver dies.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/kafka_orders.py \
        --servers broker:9092 --topic orders --checkpoint checkpoint --url postgresql://localhost/shop
"""

import argparse
import os

import psycopg
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as in Spark's own documentation)

from pgonce import BatchTransaction, transactional_batch

parser = argparse.ArgumentParser(description="Kafka orders into three Postgres tables.")
parser.add_argument("--servers", default=os.environ.get("KAFKA_SERVERS", "localhost:9092"))
parser.add_argument("--topic", default="orders")
parser.add_argument("--checkpoint", default="checkpoint")
parser.add_argument("--url", default="", help="Postgres, as libpq takes it; else libpq's environment (PGHOST ...)")
parser.add_argument("--until-caught-up", action="store_true", help="end once all orders that are there now are stored")
given = parser.parse_args()

ORDER = "order_id BIGINT, customer STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP"

TABLES = """
CREATE TABLE IF NOT EXISTS orders (order_id bigint, customer text, amount numeric(10, 2), placed_at timestamptz);
CREATE TABLE IF NOT EXISTS newest_orders (customer text PRIMARY KEY, order_id bigint, placed_at timestamptz);
CREATE TABLE IF NOT EXISTS daily_totals (day date PRIMARY KEY, orders bigint, amount numeric);
"""

ADD_TO_TOTAL = """
INSERT INTO daily_totals AS t VALUES (%s, %s, %s)
ON CONFLICT (day) DO UPDATE SET orders = t.orders + excluded.orders, amount = t.amount + excluded.amount
"""


@transactional_batch(given.url, name="orders")
def write_orders(batch: DataFrame, tx: BatchTransaction) -> None:
    batch = batch.persist()  # Kafka is read once for the three writes
    try:
        tx.append(batch, "orders")
        tx.upsert(batch.drop("amount"), "newest_orders", keys=["customer"], order_by="order_id")
        totals = batch.groupBy(F.to_date("placed_at")).agg(F.count("*"), F.sum("amount"))
        for total in totals.collect():
            tx.execute(ADD_TO_TOTAL, total)
    finally:
        batch.unpersist()


with psycopg.connect(given.url) as connection:
    connection.execute(TABLES)

spark = SparkSession.builder.appName("kafka-orders").config("spark.sql.session.timeZone", "UTC").getOrCreate()

messages = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", given.servers)
    .option("subscribe", given.topic)
    .option("startingOffsets", "earliest")
    .load()
)
orders = messages.select(F.from_json(F.col("value").cast("string"), ORDER).alias("order")).select("order.*")

query = (
    orders.writeStream.foreachBatch(write_orders)
    .option("checkpointLocation", given.checkpoint)
    .queryName("kafka-orders")
    .trigger(**({"availableNow": True} if given.until_caught_up else {"processingTime": "1 second"}))
    .start()
)
query.awaitTermination()
