"""
A table kept equal to another database's, from Debezium's events in Kafka: inserts, updates and deletes.

Events may come again or out of order, as they do after a connector has crashed: what is older than the row, or than its
delete, is passed over. The connector and Kafka Connect's JsonConverter have their default settings.

    CREATE TABLE orders (id bigint PRIMARY KEY, customer text, amount numeric(12, 2), note text, updated_at timestamptz,
        lsn bigint)  -- by which later changes of a row are told from older ones

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0 examples/cdc.py \
        localhost:9092 shop.public.orders checkpoint postgresql://localhost/copy
"""

import sys

from pyspark.sql import SparkSession

import pgonce

servers, topic, checkpoint, url = sys.argv[1:5]

query = pgonce.topic_to_table(
    SparkSession.builder.appName("cdc").getOrCreate(),
    kafka={"kafka.bootstrap.servers": servers, "subscribe": topic},
    url=url,
    table="orders",
    decode="json",
    mode="apply",
    change_feed="debezium",
    order_by="source.lsn",
    only_newer=True,
    null_values="ignore",  # what follows a delete says nothing new
    keep_where="__debezium_unavailable_value",
    checkpoint_location=checkpoint,
    query_name="cdc",
    trigger={"availableNow": True},
)
query.awaitTermination()
