"""
JSON files into a Postgres table, each row exactly once.

Run it as often as you like, from a scheduler or by hand: each run reads the files that are new, and a run that
crashed is simply started again. The table is created from the schema if it is missing.

    python examples/files_to_postgres.py --files orders --checkpoint checkpoint --url postgresql://localhost/shop
"""

import argparse

from pyspark.sql import SparkSession

parser = argparse.ArgumentParser(description="JSON files into a Postgres table, each row exactly once.")
parser.add_argument("--files", default="orders", help="a directory; files that appear in it are read once")
parser.add_argument("--checkpoint", default="checkpoint", help="where Spark records how far it is; do not delete it")
parser.add_argument("--url", default="", help="Postgres, as libpq takes it; else libpq's environment (PGHOST ...)")
given = parser.parse_args()

spark = SparkSession.builder.appName("files-to-postgres").getOrCreate()

orders = (
    spark.readStream.schema("order_id BIGINT, customer STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP")
    .option("maxFilesPerTrigger", 100)
    .json(given.files)
)

query = (
    orders.writeStream.format("pgonce")
    .option("url", given.url)
    .option("table", "orders")
    .option("createTable", "true")
    .option("checkpointLocation", given.checkpoint)
    .queryName("files-to-postgres")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
