"""
Find what grows with the number of epochs of a continuous query: `make soak-epochs N=10000`.

Runs next to a Spark driver, with Kafka and Postgres on this machine. Invariant: autovacuum is on, rows come all the
time, and what is timed is from the producer of a row to its commit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path

import psycopg
from confluent_kafka import Producer
from embedded_postgres import TEST_SETTINGS, EmbeddedPostgres
from kafka_broker import KafkaBroker, MissingTool, postgres_jdbc_jar, spark_connector_jars
from kafka_topic import create_topic
from latency_cases import COLUMNS, PARTITIONS
from measure import beside
from rich.console import Console
from screen import about_this_run, write_results
from soak import RESULTS, Soaked, plain, show, spark_settings
from soak_watch import Sample, catalogue, sample

from pgonce.offsets_store.ledger.migrations import migrate

_ROWS_A_SECOND = 100
_TOPIC = "soaked"
# Each row's latency in ms, in the order in which rows came; without those that waited for the query's start.
_LATENCIES = """
SELECT (extract(epoch FROM pg_xact_commit_timestamp(xmin) - sent_at) * 1000)::int FROM soaked
WHERE sent_at > (SELECT min(pg_xact_commit_timestamp(xmin)) + interval '10 s' FROM soaked) ORDER BY sent_at
"""


def main(arguments: Sequence[str]) -> int:
    """Exit code 0, or 2 if a tool is missing; judging is left to the reader."""
    parser = argparse.ArgumentParser(prog="make soak-epochs", description="Run many epochs and watch what grows.")
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--every", type=float, default=10.0, help="seconds between two looks")
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 150)
    settings = {**TEST_SETTINGS, "track_commit_timestamp": "on"}
    try:
        jars = ",".join(map(str, (*spark_connector_jars(), postgres_jdbc_jar())))
        with (
            tempfile.TemporaryDirectory(prefix="soak-") as directory,
            KafkaBroker() as broker,
            EmbeddedPostgres(settings=settings) as postgres,
            psycopg.connect(postgres.uri(), autocommit=True) as observer,
        ):
            about = about_this_run(settings, observer.info.parameter_status("server_version") or "unknown")
            create_topic(broker.bootstrap_servers, _TOPIC, PARTITIONS)
            migrate(observer)
            observer.execute(f"CREATE TABLE soaked ({COLUMNS})".encode())
            job = {
                "url": postgres.tcp_uri(),
                "servers": broker.bootstrap_servers,
                "topic": _TOPIC,
                "table": "soaked",
                "checkpoint": f"{directory}/checkpoint",
                "spark": {**spark_settings(directory), "spark.jars": jars},
            }
            before = catalogue(observer)
            with _sending(broker.bootstrap_servers), _driver(job) as driver:
                seen = list(_watched(driver, observer, Path(directory), given.epochs, given.every, console))
            observer.execute("VACUUM")
            latencies = [ms for (ms,) in observer.execute(_LATENCIES).fetchall()]
            after = catalogue(observer)
    except MissingTool as missing:
        console.print(str(missing), style="red")
        return 2
    soaked = Soaked(("continuous",), given.epochs, {"continuous": latencies}, seen, 0, plain(before), plain(after))
    show(console, soaked, "epochs")
    # Of a hundred rows one is kept: they are many.
    kept = replace(soaked, times={"continuous": latencies[::100]})
    measured = {"soak": [{**asdict(kept), "ratio": soaked.ratio("continuous")}]}
    console.print(
        f"All figures are in {write_results(RESULTS, about, measured, prefix='soak-epochs-')}.", soft_wrap=True
    )
    return 0


@contextmanager
def _sending(bootstrap_servers: str) -> Iterator[None]:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "log_level": 4})

    def send_until(done: threading.Event) -> None:
        number = 0
        while not done.wait(1 / _ROWS_A_SECOND):
            producer.produce(_TOPIC, b"", partition=number % PARTITIONS)
            producer.poll(0)
            number += 1

    with beside(send_until):
        yield


@contextmanager
def _driver(job: dict[str, object]) -> Iterator[subprocess.Popen[bytes]]:
    driver = subprocess.Popen(
        [sys.executable, "-u", str(Path(__file__).with_name("soak_epochs_driver.py")), json.dumps(job)],
        env={"PYSPARK_PYTHON": sys.executable, **os.environ},
        start_new_session=True,
    )
    try:
        yield driver
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def _watched(
    driver: subprocess.Popen[bytes],
    observer: psycopg.Connection,
    directory: Path,
    epochs: int,
    every_seconds: float,
    console: Console,
) -> Iterator[Sample]:
    """What is held at each look; ``batches`` of it are epochs."""
    began = time.monotonic()
    done = 0
    while done < epochs:
        if driver.poll() is not None:
            raise RuntimeError(f"The driver ended with {driver.returncode} after {done} of {epochs} epochs.")
        time.sleep(every_seconds)
        # The run's own checkpoint, inside the query's.
        done = max((int(path.name) for path in directory.rglob("commits/*") if path.name.isdigit()), default=0)
        console.print(f"{time.monotonic() - began:7.0f} s: {done} epochs", style="dim")
        yield replace(sample(driver.pid, observer, began), batches=done)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
