"""
Measure how much of a trigger's time asynchronous progress tracking saves: `make bench-async`.

Runs on the driver, with Spark, Kafka and Postgres on this machine. Invariant: all contenders read the same topic and
write the same columns, and alternate in one run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from statistics import median

from async_ways import WRITER, asynchronous
from confluent_kafka import Producer
from contenders import FOREACH_NOTHING, Contender
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, MissingTool, spark_connector_jars
from kafka_topic import create_topic
from loads import KafkaLoad
from measure import Bench, alternate
from report import figures, ratios
from rich.console import Console
from rich.table import Table
from run import POSTGRES, spark_session

CONTENDERS = tuple(
    way
    for contender in (FOREACH_NOTHING, WRITER)
    for way in (contender, asynchronous(contender, 0), asynchronous(contender, 1000))
)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-async", description="Trigger times with asynchronous progress.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args(arguments).rounds
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    try:
        jars = spark_connector_jars()
        with (
            KafkaBroker() as broker,
            EmbeddedPostgres(settings=POSTGRES) as postgres,
            spark_session(*jars) as spark,
        ):
            load = KafkaLoad(
                "1,000 rows", 1_000, 2, rounds, warm_up=10, measured=40,
                topic="triggers", bootstrap_servers=broker.bootstrap_servers,
            )  # fmt: skip
            _fill(load)
            bench = Bench(spark, postgres.tcp_uri(), "")
            times = _measure(bench, load, console.print)
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    console.print(_table(times))
    return 0


def _fill(load: KafkaLoad) -> None:
    create_topic(load.bootstrap_servers, load.topic, load.partitions)
    producer = Producer({"bootstrap.servers": load.bootstrap_servers, "linger.ms": 20})
    for number in range(load.rows * (load.warm_up + load.measured + 5)):
        producer.produce(load.topic, b"", partition=number % load.partitions)
        if number % 10_000 == 0:
            producer.flush()
    producer.flush()


def _measure(bench: Bench, load: KafkaLoad, say: Callable[[str], None]) -> dict[str, list[list[int]]]:
    times: dict[str, list[list[int]]] = {contender.name: [] for contender in CONTENDERS}

    def measure(contender: Contender, number: int) -> None:
        say(f"round {number + 1} of {load.rounds}: {contender.name}")
        times[contender.name].append(bench.run(contender, load))

    alternate(CONTENDERS, load.rounds, measure)
    return times


def _table(times: dict[str, list[list[int]]]) -> Table:
    table = Table("Way in", "Median ms", "p10 to p90", "To the same without async")
    for name, found in times.items():
        spread = figures(found)
        plain = times[name.partition(", async")[0]]
        ratio = median(ratios(found, plain))
        table.add_row(name, f"{spread.median:.0f}", f"{spread.p10:.0f} to {spread.p90:.0f}", f"{ratio:.2f}")
    return table


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
