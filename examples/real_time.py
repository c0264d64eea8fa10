"""
The examples of Spark's documentation on continuous processing, real-time mode and asynchronous progress tracking, with
Postgres as the sink.

There, a query from one topic into another changes its mode by one line, and keeps a guarantee of at least once. Here
the messages go into a table, each exactly once. Kill the driver at any moment and start it again, in the same mode or
in another one, with the same checkpoint.

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0,org.postgresql:postgresql:42.7.8 \
        examples/real_time.py --mode continuous --servers broker:9092 --topic topic1 --checkpoint checkpoint \
        --url postgresql://localhost/shop
"""

import argparse
import os

from pyspark.sql import DataFrame, SparkSession

from pgonce import PostgresBatchWriter, recover_and_start, start_real_time

parser = argparse.ArgumentParser(description="Messages of a topic into a table, in the modes with low latency.")
parser.add_argument("--mode", choices=["real-time", "continuous", "async"], default="real-time")
parser.add_argument("--servers", default=os.environ.get("KAFKA_SERVERS", "localhost:9092"))
parser.add_argument("--topic", default="topic1")
parser.add_argument("--checkpoint", default="checkpoint")
parser.add_argument("--url", required=True, help="Postgres, as libpq takes it, with a host (JDBC has no Unix sockets)")
given = parser.parse_args()

SOURCE = {"kafka.bootstrap.servers": given.servers, "subscribe": given.topic, "startingOffsets": "earliest"}


def messages(records: DataFrame) -> DataFrame:
    """Keys and values, as in Spark's examples, and the positions by which pgonce knows what is stored already."""
    return records.selectExpr("CAST(key AS STRING)", "CAST(value AS STRING)", "topic", "partition", "offset")


spark = SparkSession.builder.appName("messages").getOrCreate()

if given.mode == "async":
    positions = ["topic", "partition", "offset"]
    writer = PostgresBatchWriter(
        given.url, table="messages", create_table=True, position_columns=positions, write_positions=False
    )
    records = spark.readStream.format("kafka").options(**SOURCE).load()
    query = recover_and_start(
        messages(records)
        .writeStream.foreachBatch(writer)
        .option("asyncProgressTrackingEnabled", "true"),  # the one line
        given.checkpoint,
        given.url,
    )
else:
    query = start_real_time(
        spark,
        kafka=SOURCE,
        rows=messages,
        url=given.url,
        table="messages",
        create_table=True,
        write_positions=False,
        checkpoint_location=given.checkpoint,
        **({"continuous": "1 second"} if given.mode == "continuous" else {"real_time": "1 minute"}),  # the one line
    )
query.awaitTermination()
