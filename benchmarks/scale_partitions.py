"""
Measure what a batch costs whose topic has 10, 100 or 1,000 partitions: `make bench-scale PART=partitions`.

Runs on the driver, with Spark, a real Kafka and Postgres on this machine. Invariant: every topic has the same records
and every batch takes all partitions, so that only the number of partitions grows; Spark makes a task of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import psycopg
from confluent_kafka import Producer
from contenders import BATCH_WRITER, FOREACH_NOTHING, PYTHON_NOTHING, WITHOUT_RECEIVER
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, spark_connector_jars
from kafka_topic import create_topic
from loads import KafkaLoad
from measure import Bench, alternate
from report import ratios
from rich.console import Console
from rich.table import Table
from run import POSTGRES, spark_session

_ROWS = 10_000
_WAYS = (PYTHON_NOTHING, WITHOUT_RECEIVER, FOREACH_NOTHING, BATCH_WRITER)
_SIZES = (
    "SELECT max(octet_length(offset_log)), max(pg_column_size(offset_log)), "
    "max(pg_column_size(start_offsets) + pg_column_size(end_offsets)), count(*) FROM pgonce.batches "
    "WHERE pg_catalog.strpos(offset_log, %s) > 0"
)


def measure_partitions(counts: Sequence[int], rounds: int, console: Console) -> dict[str, Any]:
    """Triggers of each way with so many partitions, and what of the offsets is in the ledger."""
    jars = spark_connector_jars()
    times: dict[int, dict[str, list[list[int]]]] = {}
    sizes: dict[int, tuple[int, ...]] = {}
    with KafkaBroker() as broker, EmbeddedPostgres(settings=POSTGRES) as postgres, spark_session(*jars) as spark:
        bench = Bench(spark, postgres.tcp_uri(), "")
        for partitions in counts:
            load = KafkaLoad(
                f"{partitions:,} partitions", _ROWS, partitions, rounds, warm_up=1, measured=2,
                topic=f"of_{partitions}", bootstrap_servers=broker.bootstrap_servers,
            )  # fmt: skip
            _fill(load)
            times[partitions] = _triggers(bench, load, console)
            with psycopg.connect(postgres.uri(), autocommit=True) as admin:
                sizes[partitions] = tuple(admin.execute(_SIZES, [f'"{load.topic}"']).fetchone() or ())
    console.print(_table(times, sizes))
    return {"rows": _ROWS, "trigger_ms": times, "bytes": sizes}


def _fill(load: KafkaLoad) -> None:
    create_topic(load.bootstrap_servers, load.topic, load.partitions)
    producer = Producer({"bootstrap.servers": load.bootstrap_servers, "linger.ms": 50})
    for number in range(_ROWS * 4):
        producer.produce(load.topic, b"", partition=number % load.partitions)
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()


def _triggers(bench: Bench, load: KafkaLoad, console: Console) -> dict[str, list[list[int]]]:
    found: dict[str, list[list[int]]] = {way.name: [] for way in _WAYS}

    def measure(way_number: int, number: int) -> None:
        way = _WAYS[way_number]
        console.print(f"{load.name}, round {number + 1} of {load.rounds}: {way.name}", style="dim")
        found[way.name].append(bench.run(way, load))
        console.print(f"  {found[way.name][-1]} ms", style="dim")

    alternate(range(len(_WAYS)), load.rounds, measure)
    return found


def _table(times: dict[int, dict[str, list[list[int]]]], sizes: dict[int, tuple[int, ...]]) -> Table:
    table = Table(title=f"From Kafka, {_ROWS:,} records a batch", title_justify="left")
    for name in ("partitions", "way", "median ms", f"x {PYTHON_NOTHING.name}", "offsets/N: bytes", "a record: bytes"):
        table.add_column(name)
    for partitions, ways in times.items():
        text, stored_text, stored_json, _ = sizes[partitions]
        for name, rounds in ways.items():
            middle = median(ms for of_round in rounds for ms in of_round)
            ratio = median(ratios(rounds, ways[PYTHON_NOTHING.name]))
            table.add_row(
                f"{partitions:,}", name, f"{middle:,.0f}", f"{ratio:.2f}", f"{text:,}", f"{stored_text + stored_json:,}"
            )
    return table
