"""
A job that logs all it can, and fails in every way that connecting can fail.

Runs in: a driver of its own. Its first argument is a file with JSON: connection strings by name, the ways in that are
tried with each, and folders. They are in no argument, since a program's arguments can be seen with `ps`.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import traceback
from pathlib import Path

from pyspark import cloudpickle
from pyspark.sql.streaming.listener import StreamingQueryListener
from support.spark_session import started_session

from pgonce import OffsetsListener, OffsetsStore, PostgresBatchWriter, transactional_batch
from pgonce.sink.data_source.spark_interface import StreamWriter
from pyspark_pgonce import DefaultSource

# Files have no topics, so no broker is ever asked.
NO_BROKER = "127.0.0.1:9"
# By the name of their connection string.
_made: dict[str, PostgresBatchWriter] = {}


class Recording(DefaultSource):
    """The data source as it is; the messages that tasks send to the commit are kept too."""

    @classmethod
    def name(cls):
        return "recording"

    def streamWriter(self, schema, overwrite):
        made = super().streamWriter(schema, overwrite)
        return RecordingWriter(made.options, made.task_writer, made.rooms)


class RecordingWriter(StreamWriter):
    def commit(self, messages, batchId):
        with Path(os.environ["PGONCE_TEST_MESSAGES"]).open("ab") as kept:
            kept.write(pickle.dumps(messages))
        super().commit(messages, batchId)


class Talkative(StreamingQueryListener):
    """Prints every event."""

    def onQueryStarted(self, event):
        print("EVENT", vars(event))

    def onQueryProgress(self, event):
        print("EVENT", event.progress.json)

    def onQueryIdle(self, event):
        print("EVENT", vars(event))

    def onQueryTerminated(self, event):
        print("EVENT", event.exception, event.errorClassOnException)


def main(given):
    """Run one query for each connection string and way in, all at once; what each of them raises is printed."""
    logging.basicConfig(level=logging.DEBUG, stream=sys.stdout)
    # Py4J repeats at DEBUG whatever a program tells the JVM: docs/security.md warns of it.
    logging.getLogger("py4j").setLevel(logging.INFO)
    spark = started_session("talkative", given["spark"], "DEBUG")
    spark.dataSource.register(Recording)
    spark.streams.addListener(Talkative())
    listener = OffsetsListener(given["urls"]["uri"])
    spark.streams.addListener(listener)

    started = [
        (name, way, attempted(lambda url=url, way=way, name=name: start(spark, given, url, way, name)))
        for name, url in given["urls"].items()
        for way in given["ways"][name]
    ]
    for name, way, query in started:
        print(f"RUN {name}, {way}")
        attempted(lambda query=query: show(query))
    os.environ["PGPASSWORD"] = given["password"]
    show(start(spark, given, given["silent url"], "batch writer", "environment"))
    attempted(OffsetsStore(given["urls"]["wrong password"]).status)
    # After they have connected, and in the two ways in which Python objects travel.
    store = OffsetsStore(given["urls"]["token"], password_from=given["sources"]["token"])
    attempted(store.status)
    for kept in (*vars(_made["token"]).values(), store):
        attempted(lambda kept=kept: print("PICKLED", pickle.dumps(kept), cloudpickle.dumps(kept), kept))
    listener.close()
    spark.stop()


def attempted(attempt):
    """What an attempt gives; where it raises, the traceback is printed."""
    try:
        return attempt()
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return None


def show(query):
    """Wait for a query's end, and print all that can be seen of it; None is one that could not be started."""
    if query is None:
        return
    print("ACTIVE", query, vars(query))
    attempted(lambda: query.awaitTermination(600))
    print("EXCEPTION", query.exception())
    query.explain(extended=True)
    print("PROGRESS", query.recentProgress)


def start(spark, given, url, way, name):
    """Start one query of five rows; the name tells what is to go wrong."""
    source = given["sources"].get(name)
    folder = Path(given["folder"]) / f"{name} {way}".replace(" ", "-")
    table = "refusing" if name == "refused row" else "events"
    frame = spark.readStream.schema("id long, name string").json(given["inbox"])
    writer = frame.writeStream.option("checkpointLocation", str(folder))
    if way == "data source":
        # In a batch of its own, staged: tasks connect too.
        options = {"inlineBytes": "0", "receiver": "off", "retryTimeout": "0", "independent": "true"}
        options["bootstrapServers"] = NO_BROKER
        if source:
            options["passwordFrom"] = source
        if name == "uri":
            options["executorUrl"] = given["executor url"]
        writer = writer.format("recording").options(url=url, table=table, **options, **given["kafka"])
    elif way == "batch writer":
        # What is pickled below must be without any secret, so that writer has no login to Kafka.
        kafka = {} if source else {"bootstrap_servers": NO_BROKER, "kafka_options": given["kafka"]}
        made = PostgresBatchWriter(url, password_from=source, table=table, independent=True, retry_timeout=0, **kafka)
        print("WRITER", repr(made), made)
        _made[name] = made
        writer = writer.foreachBatch(made)
    else:

        @transactional_batch(url, password_from=source, name=f"{name} function", independent=True, retry_timeout=0)
        def write(batch, tx):
            tx.append(batch, table)
            if name == "bad sql":
                tx.execute("SELECT no_such_column FROM events")

        writer = writer.foreachBatch(write)
    return writer.queryName(f"{name} {way}".replace(" ", "_")).trigger(availableNow=True).start()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
