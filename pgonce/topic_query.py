"""
Start the query that brings a topic into a table.

Runs on the driver. Invariant: the query reads the whole topic, and nothing stands between the source and the sink, so
every record has its position: batches that Spark runs again, whatever their range is, add nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg import sql
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from typing_extensions import Unpack

from pgonce.for_each_batch import PostgresBatchWriter
from pgonce.offsets_store.errors import ConnectError, bad_option, bad_target
from pgonce.offsets_store.kafka.settings import PREFIX, of_the_login
from pgonce.offsets_store.postgres.postgres_url import PostgresUrl
from pgonce.recovery.recover_and_start import recover_and_start
from pgonce.sink.decoding.proposed_table import create_statement
from pgonce.sink.options.definitions import OPTIONS, WriterOptions
from pgonce.sink.options.option import Way
from pgonce.sink.options.reading import Given, read, takes_options
from pgonce.sink.writing.first_look import looking
from pgonce.sink.writing.table.catalogue import look_up_table

_LOOKED_AT = 100


@takes_options(Way.WRITER)
def topic_to_table(
    spark: SparkSession,
    *,
    kafka: Mapping[str, object],
    url: str = "",
    query_name: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    on_executors: bool = False,
    **options: Unpack[WriterOptions],
) -> StreamingQuery:
    """
    Start a query that decodes the records of a topic into a table, each exactly once.

    Its checkpoint is made to agree with the ledger first, and the brokers are asked for the ids of the topics.

    :param kafka: the options of Spark's Kafka source. A new query reads from the topic's beginning, unless
        ``startingOffsets`` says otherwise.
    :param trigger: the arguments of Spark's ``trigger``, such as ``{"availableNow": True}``.
    :param on_executors: whether executors decode, with ``format("pgonce")``, and not the driver.
    :raises ConfigurationError: for options that cannot work.
    :raises TargetError: TARGET_MISSING, with a ``CREATE TABLE`` that would fit the first records.
    :raises RecoveryError: as :func:`recover_and_start`.
    """
    # Spark takes these names in any case.
    source = {name.lower(): str(value) for name, value in kafka.items()}
    servers = source.get(f"{PREFIX}bootstrap.servers")
    if not servers:
        what = "The options of Kafka's source need kafka.bootstrap.servers."
        remedy = 'Write kafka={"kafka.bootstrap.servers": "host:9092", "subscribe": "orders"}.'
        raise bad_option("BAD_OPTION", what, remedy)
    login = of_the_login(source)
    asked: dict[str, Any] = {"bootstrap_servers": servers, "kafka_options": login or None, **options}
    if options.get("schema_registry_url"):
        # Confluent's serializers name subjects so by default.
        topics = source.get("subscribe", "").split(",")
        asked = {"schema_subjects": [f"{topic.strip()}-value" for topic in topics if topic], **asked}
    given = read({"url": url, **asked}, Way.WRITER)
    ledger = PostgresUrl(url, given["password_from"])
    location = given["checkpoint_location"]
    if not given["decode"] or not location:
        name = "checkpoint_location" if given["decode"] else "decode"
        raise bad_option("OPTION_MISSING", f"{name} is not set.", f"It means: {OPTIONS[name].summary}")
    # A table that has only what comes from now on would look whole.
    source = {"startingoffsets": "earliest", **source, "includeheaders": "true"}
    _refuse_missing_table(spark, source, ledger, given)
    writer: DataStreamWriter = spark.readStream.format("kafka").options(**source).load().writeStream
    if on_executors:
        writer = writer.format("pgonce").options(url=url, **_as_sparks(given))
    else:
        writer = writer.foreachBatch(PostgresBatchWriter(url, **asked))
    if query_name:
        writer = writer.queryName(query_name)
    if trigger:
        writer = writer.trigger(**trigger)
    return recover_and_start(writer, location, ledger)


def _as_sparks(given: Given) -> dict[str, str]:
    """The options as Spark takes them, which are texts; the location comes with the start."""
    found = {}
    for argument, value in given.items():
        if argument in ("url", "checkpoint_location", "kafka_options"):
            continue
        text = json.dumps(value) if isinstance(value, Mapping) else value
        text = ",".join(text) if isinstance(text, tuple) else text
        found[OPTIONS[argument].name] = str(text).lower() if isinstance(text, bool) else str(text)
    return {**found, **(given["kafka_options"] or {})}


def _refuse_missing_table(spark: SparkSession, source: Mapping[str, str], url: str, given: Given) -> None:
    """:raises TargetError: TARGET_MISSING; a server that cannot be asked now is left to the first batch."""
    if given["create_table"]:
        return
    try:
        with looking(url) as connection:
            found, table = look_up_table(connection, given["table"])
    except (ConnectError, psycopg.Error):
        return
    if table is not None:
        return
    first = spark.read.format("kafka").options(**{**source, "startingoffsets": "earliest"}).load()
    # What an event says is not its row.
    looked_at = 0 if given["change_feed"] else _LOOKED_AT
    values = [row.value for row in first.select("value").limit(looked_at).collect()]
    statement = create_statement(sql.Identifier(found.schema, found.name), values, given["keys"])
    raise bad_target(
        "TARGET_MISSING",
        f"There is no table {found.qualified_name}.",
        f"Create it; this one would hold the first records: {statement}"
        if statement
        else "Create it: the topic has no JSON objects yet from which a table could be proposed. With a schema "
        "registry, create_table does so.",
    )
