"""
Compare with Debezium's JDBC sink how fast changes are applied, deletes among them: `make bench-changes`.

Runs on the driver, with Spark, Kafka, Kafka Connect and Postgres on this machine. Invariant: all contenders read the
same records of one topic to its end, and each table is equal to the source's afterwards. All are warm: the snapshot and
the first batches of changes are not counted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import psycopg
from change_records import ChangeLoad, Marks, check_final_state, store_final_state
from commit_times import apply_with
from contenders import CHANGES_UPSERT, PGONCE_APPLY, WRITER_APPLY, WRITER_ONLY_NEWER, Contender
from cpu_seconds import CpuWatch, Used
from debezium import debezium_with_deletes
from embedded_postgres import EmbeddedPostgres
from kafka_broker import KafkaBroker, MissingTool, spark_connector_jars
from kafka_connect import connect_class_path
from measure import Bench, by_round, empty_table
from report import Goal, judge
from rich.console import Console
from run import POSTGRES, RESULTS, spark_session
from screen import about_this_run, load_as_json, show_cpu, show_goals, show_load, write_results

DEBEZIUM = Contender("Debezium's JDBC sink, with deletes", lambda writer, _: writer, "rows_debezium")
CONTENDERS = (WRITER_APPLY, WRITER_ONLY_NEWER, PGONCE_APPLY, CHANGES_UPSERT, DEBEZIUM)
# Debezium does not report when it has committed.
SETTINGS = {**POSTGRES, "track_commit_timestamp": "on"}


@dataclass(frozen=True)
class ChangesBench:
    """The servers of a run, what measures them, and what the topic has."""

    bench: Bench
    cpu: CpuWatch
    marks: Marks

    def run(self, contender: Contender, load: ChangeLoad) -> tuple[list[int], Used]:
        """For one contender in one round: each measured batch in ms, and the CPU seconds of all of them."""
        url, table = self.bench.url, str(contender.table)
        # What is compared with later changes has to be stored.
        columns = f"{load.columns}, lsn bigint" if contender is WRITER_ONLY_NEWER else load.columns
        with empty_table(url, table, columns), psycopg.connect(url, autocommit=True) as connection:
            if contender is DEBEZIUM:
                sink = debezium_with_deletes(load, self.bench.jdbc_url, table)
                measured = apply_with(sink, self.cpu, url, table, load, self.marks)
            else:
                with self.cpu.watching(os.getpid()):
                    triggers = self.bench.triggers_to_the_end(contender, load)
                measured = [trigger.ms for trigger in triggers], self.cpu.used(triggers)
            if contender is not CHANGES_UPSERT:
                check_final_state(connection, table)
        return measured


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 1 if a full run missed a goal, or 2 if a tool is missing."""
    parser = argparse.ArgumentParser(prog="make bench-changes", description="Changes from Kafka, applied to Postgres.")
    parser.add_argument("--small", action="store_true", help="a quick look, a minute or two; judges nothing")
    parser.add_argument("--only", help="contenders whose names contain this, and no goals")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    contenders = [contender for contender in CONTENDERS if (given.only or "") in contender.name]
    try:
        jars = spark_connector_jars()
        # Fetched now, rather than when its turn comes.
        connect_class_path()
        with (
            KafkaBroker() as broker,
            EmbeddedPostgres(settings=SETTINGS) as postgres,
            spark_session(*jars) as spark,
            psycopg.connect(postgres.uri(), autocommit=True) as connection,
        ):
            load = _load(broker.bootstrap_servers, small=given.small)
            console.print("Filling the topic", style="dim")
            marks = load.fill()
            store_final_state(load, connection)
            jdbc_url = f"jdbc:postgresql://{postgres.host}:{postgres.port}/postgres?user=postgres"
            watch = CpuWatch(postgres.pid, bystanders=[broker.pid])
            bench = ChangesBench(Bench(spark, postgres.tcp_uri(), jdbc_url), watch, marks)
            found = by_round(contenders, load, console, partial(bench.run, load=load))
            times = {name: [ms for ms, _ in rounds] for name, rounds in found.items()}
            used = {name: [seconds for _, seconds in rounds] for name, rounds in found.items()}
            about = about_this_run(SETTINGS, connection.info.parameter_status("server_version") or "unknown")
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    baselines = [name for name in (CHANGES_UPSERT.name, DEBEZIUM.name) if name in times]
    show_load(console, load, times, baselines)
    show_cpu(console, load, used)
    goals = [
        *(Goal(load.name, contender.name, DEBEZIUM.name, 1 / 1.3) for contender in (WRITER_APPLY, PGONCE_APPLY)),
        Goal(load.name, WRITER_ONLY_NEWER.name, DEBEZIUM.name, 1 / 1.2),
    ]
    outcomes = [judge(goal, times) for goal in goals] if not given.only else []
    show_goals(console, outcomes, judged=not given.small)
    measured = {"loads": [{**load_as_json(load, times), "cpu_seconds": used}], "small": given.small}
    path = write_results(RESULTS, about, measured, prefix="changes-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0 if given.small or all(outcome.met for outcome in outcomes) else 1


def _load(bootstrap_servers: str, *, small: bool) -> ChangeLoad:
    if small:
        name, rows, rounds, warm_up, keys = "20,000 changes", 20_000, 1, 2, 40_000
    else:
        name, rows, rounds, warm_up, keys = "500,000 changes", 500_000, 3, 2, 1_000_000
    return ChangeLoad(
        name, rows, 4, rounds, warm_up, measured=2, bootstrap_servers=bootstrap_servers, keys=keys
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
