"""
Two flows of a declarative pipeline into one Postgres table: orders of the shop's site, and those of its tills.

The environment says where they are: ORDERS, a folder with the folders `web` and `tills`, and for Postgres libpq's own
variables (PGHOST, PGDATABASE, ...). INDEPENDENT=true is for the first run.
"""

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()
SCHEMA = "order_id BIGINT, customer STRING, amount DECIMAL(10, 2), placed_at TIMESTAMP"

dp.create_sink(
    "orders",
    "pgonce",
    {
        "url": "",
        "table": "orders",
        "createTable": "true",
        # Both flows feed the table with rows of their own. Later on, this would also let in a flow that was refreshed,
        # and all its rows once more.
        "independent": os.environ.get("INDEPENDENT", "false"),
    },
)


# A flow of another name would read everything again (docs/clusters.md), so each has one of its own: that of its
# function can be changed.
@dp.append_flow(target="orders", name="web_orders")
def web_orders() -> DataFrame:
    return spark.readStream.schema(SCHEMA).json(os.environ["ORDERS"] + "/web")


@dp.append_flow(target="orders", name="till_orders")
def till_orders() -> DataFrame:
    return spark.readStream.schema(SCHEMA).json(os.environ["ORDERS"] + "/tills")
