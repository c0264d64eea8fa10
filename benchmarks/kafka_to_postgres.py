"""
Compare pgonce with what people use, from Kafka to Postgres: `make bench-kafka`.

Runs on the driver, with Spark, Kafka, Kafka Connect, Flink and Postgres on this machine. Invariant: all contenders read
the same records of one topic, and all are warm: the first batches of each are not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import psycopg
from async_ways import WRITER
from commit_times import Sink, write_with
from contenders import DECODING, DECODING_WRITER, FOREACH_NOTHING, PGONCE, PYTHON_NOTHING, SPARK_JDBC, STAGED, Contender
from cpu_seconds import CpuWatch, Used
from debezium import debezium
from embedded_postgres import EmbeddedPostgres
from flink_xa import FLINK_SETTINGS, flink_class_path, flink_xa
from kafka_broker import KafkaBroker, MissingTool, postgres_jdbc_jar, spark_connector_jars
from kafka_connect import connect_class_path
from kafka_json import JsonLoad, consume
from loads import COLUMNS
from measure import Bench, by_round, empty_table
from report import Goal, judge
from rich.console import Console
from run import POSTGRES, RESULTS, spark_session
from screen import about_this_run, load_as_json, show_cpu, show_goals, show_load, write_results

BY_HAND = Contender("a consumer by hand, without Spark", lambda writer, _: writer, "rows_by_hand")
DEBEZIUM = Contender("Debezium's JDBC sink", lambda writer, _: writer, "rows_debezium")
FLINK = Contender("Flink's JDBC sink, XA", lambda writer, _: writer, "rows_flink")

CONTENDERS = (
    FOREACH_NOTHING,
    PYTHON_NOTHING,
    *DECODING,
    WRITER,
    PGONCE,
    STAGED,
    SPARK_JDBC,
    DEBEZIUM,
    FLINK,
    BY_HAND,
)
_ROWS = 1_000_000
# Debezium and Flink do not report when they have committed.
SETTINGS = {**POSTGRES, **FLINK_SETTINGS, "track_commit_timestamp": "on"}


@dataclass(frozen=True)
class KafkaBench:
    """The servers of a run, and what measures them."""

    bench: Bench
    cpu: CpuWatch

    def run(self, contender: Contender, load: JsonLoad) -> tuple[list[int], Used]:
        """For one contender in one round: each measured batch in ms, and the CPU seconds of all of them."""
        if contender is BY_HAND:
            with empty_table(self.bench.url, contender.table, load.columns), self.cpu.watching(os.getpid()):
                measured = consume(load, self.bench.url, str(contender.table))
            return [stretch.ms for stretch in measured], self.cpu.used(measured)
        if contender in (DEBEZIUM, FLINK):
            return self._write_with(contender, load, str(contender.table))
        if contender in DECODING:
            load = replace(load, decodes=True)
        with self.cpu.watching(os.getpid()):
            measured = self.bench.round(contender, load).triggers
        return [stretch.ms for stretch in measured], self.cpu.used(measured)

    def _write_with(self, contender: Contender, load: JsonLoad, table: str) -> tuple[list[int], Used]:
        sink: Sink
        if contender is DEBEZIUM:
            sink = debezium(load, self.bench.jdbc_url, table)
        else:
            sink = flink_xa(load, self.bench.url, self.bench.jdbc_url, table)
        with empty_table(self.bench.url, table, load.columns):
            return write_with(sink, self.cpu, self.bench.url, table, load)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-kafka", description="From Kafka to Postgres.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rows", type=int, default=_ROWS, help="rows of a batch")
    parser.add_argument("--nested", action="store_true", help="records with a jsonb column more, for those that decode")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    try:
        jars = (*spark_connector_jars(), postgres_jdbc_jar())
        # Fetched now, rather than when their turn comes.
        connect_class_path()
        flink_class_path()
        with (
            KafkaBroker() as broker,
            EmbeddedPostgres(settings=SETTINGS) as postgres,
            spark_session(*jars) as spark,
            psycopg.connect(postgres.uri()) as connection,
        ):
            load = JsonLoad(
                f"{given.rows:,} JSON records", given.rows, 4, given.rounds, warm_up=3, measured=2,
                bootstrap_servers=broker.bootstrap_servers, nests=given.nested,
                columns=f"{COLUMNS}, info jsonb" if given.nested else COLUMNS,
            )  # fmt: skip
            console.print("Filling the topic", style="dim")
            load.fill()
            jdbc_url = f"jdbc:postgresql://{postgres.host}:{postgres.port}/postgres?user=postgres"
            watch = CpuWatch(postgres.pid, bystanders=[broker.pid])
            bench = KafkaBench(Bench(spark, postgres.tcp_uri(), jdbc_url), watch)
            contenders = (FOREACH_NOTHING, *DECODING) if given.nested else CONTENDERS
            found = by_round(contenders, load, console, partial(bench.run, load=load))
            times = {name: [ms for ms, _ in rounds] for name, rounds in found.items()}
            used = {name: [seconds for _, seconds in rounds] for name, rounds in found.items()}
            about = about_this_run(SETTINGS, connection.info.parameter_status("server_version") or "unknown")
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    against = (FOREACH_NOTHING, SPARK_JDBC, DEBEZIUM, FLINK)
    show_load(console, load, times, [one.name for one in against if one in contenders])
    show_cpu(console, load, used)
    goals = (
        []
        if given.nested
        else [
            Goal(load.name, DECODING_WRITER.name, FOREACH_NOTHING.name, 0.80),
            Goal(load.name, DECODING_WRITER.name, FLINK.name, 1.0),
            Goal(load.name, WRITER.name, FOREACH_NOTHING.name, 1.12),
            Goal(load.name, PGONCE.name, FOREACH_NOTHING.name, 1.30),
            Goal(load.name, WRITER.name, DEBEZIUM.name, 1 / 1.5),
            Goal(load.name, WRITER.name, FLINK.name, 1 / 1.2),
        ]
    )
    show_goals(console, [judge(goal, times) for goal in goals], judged=given.rows >= _ROWS)
    measured = {**load_as_json(load, times), "cpu_seconds": used}
    path = write_results(RESULTS, about, {"loads": [measured]}, prefix="kafka-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
