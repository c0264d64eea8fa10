"""
One stream of events into several Postgres tables, each row in the table that its kind chooses, in one transaction.

    CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(10, 2));
    CREATE TABLE payments (id bigint PRIMARY KEY, order_id bigint REFERENCES orders, amount numeric(10, 2))

    python examples/many_tables.py events checkpoint postgresql://localhost/shop
"""

import json
import sys

from pyspark.sql import SparkSession

files, checkpoint, url = sys.argv[1:4]
spark = SparkSession.builder.appName("many-tables").getOrCreate()
schema = "kind STRING, id BIGINT, customer STRING, order_id BIGINT, amount DECIMAL(10, 2)"
events = spark.readStream.schema(schema).json(files)

# A kind that is not listed goes nowhere, and is counted. Orders come first, because payments refer to them.
tables = {
    "order": {"table": "orders", "mode": "upsert", "columns": ["id", "customer", "amount"]},
    "payment": {"table": "payments", "columns": ["id", "order_id", "amount"]},
}
pgonce = {
    "url": url,
    "route": "kind",
    "tables": json.dumps(tables),
    "unknownRoutes": "drop",
    "checkpointLocation": checkpoint,
}
query = events.writeStream.format("pgonce").options(**pgonce).trigger(availableNow=True).queryName("shop").start()
query.awaitTermination()
