"""
A table kept equal to another database's, from Debezium's events in Kafka: inserts, updates and deletes.

Events may come again or out of order, as they do after a connector has crashed: what is older than the row, or than its
delete, is passed over.

    CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12, 2), note text, updated_at timestamptz,
        lsn bigint)  -- by which later changes of a row are told from older ones

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/cdc.py \
        localhost:9092 shop.public.orders checkpoint postgresql://localhost/copy
"""

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 (as in Spark's own documentation)

servers, topic, checkpoint, url = sys.argv[1:5]
ROW = "id: BIGINT, customer: STRING, amount: DECIMAL(12, 2), note: STRING, updated_at: TIMESTAMP"
EVENT = f"before STRUCT<{ROW}>, after STRUCT<{ROW}>, op STRING, source STRUCT<lsn: BIGINT>"

spark = SparkSession.builder.appName("cdc").config("spark.sql.session.timeZone", "UTC").getOrCreate()
kafka = {"kafka.bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
records = spark.readStream.format("kafka").options(**kafka).load().where("value IS NOT NULL")
events = records.select(F.from_json(F.col("value").cast("string"), EVENT).alias("event")).select("event.*")
pgonce = {
    "url": url,
    "table": "orders",
    "mode": "apply",
    "changeFeed": "debezium",
    "orderBy": "source.lsn",
    "onlyNewer": "true",
    "keepWhere": "__debezium_unavailable_value",
    "checkpointLocation": checkpoint,
}
query = events.writeStream.format("pgonce").options(**pgonce).trigger(availableNow=True).queryName("cdc").start()
query.awaitTermination()
