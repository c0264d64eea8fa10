"""
Make a topic, and read it as a stream.

Runs on the driver. Invariant: every benchmark reads a topic from its beginning.
"""

from __future__ import annotations

from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession


def create_topic(bootstrap_servers: str, topic: str, partitions: int) -> None:
    """Create the topic, and return when it is there."""
    # Kept in a variable: a client without a reference ends before it has its answer.
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result()


def topic_stream(spark: SparkSession, bootstrap_servers: str, topic: str, **options: int) -> DataFrame:
    """All records of the topic; ``options`` are the source's own."""
    source = spark.readStream.format("kafka").option("kafka.bootstrap.servers", bootstrap_servers)
    return source.options(subscribe=topic, startingOffsets="earliest", **options).load()
