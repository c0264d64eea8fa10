"""
Write the topic with Flink's JDBC sink and XA transactions.

Runs on the driver, with Flink in a JVM of its own. Invariant: no prepared transaction outlives the sink, because it
would lock its table for ever.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg
from jvm import Jvm
from kafka_json import TOPIC, JsonLoad
from maven import MissingTool, build_once, jars_of_pom, java
from psycopg import sql
from typing_extensions import Self

# Postgres's, for Flink: each of the two tasks prepares a transaction at each checkpoint.
FLINK_SETTINGS = {"max_prepared_transactions": "64"}
_PROGRAM = Path(__file__).parent / "flink" / "FlinkXa.java"
_ROWS_AT_ONCE = 5_000
# Rows become visible at each checkpoint, so no time is known more exactly than this. One or two seconds were not
# faster.
_CHECKPOINT_MS = 500
# Flink's own scripts open these packages.
_OPENED = ("java.lang", "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "java.net", "java.io")
_OPTIONS = (
    "-Xms256m",
    "-Xmx3g",
    "-XX:+UseParallelGC",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)


def flink_class_path() -> list[Path]:
    """Flink's jars, and the program's classes before them. :raises MissingTool:"""
    pom = _PROGRAM.with_name("pom.xml")
    jars = jars_of_pom(pom)
    compiler = Path(java()).with_name("javac")
    if not compiler.exists():
        raise MissingTool(
            f"Java's compiler is missing beside {compiler.with_name('java')}: install a JDK (openjdk-17)."
        )

    def compile_into(directory: Path) -> None:
        class_path = os.pathsep.join(map(str, jars))
        subprocess.run([compiler, "-cp", class_path, "-d", directory, _PROGRAM], check=True)

    return [build_once("flink-program", pom.read_bytes() + _PROGRAM.read_bytes(), compile_into), *jars]


@dataclass(frozen=True)
class FlinkJob:
    """
    One job: from a consumer group's offsets, the topic's beginning at first, into a table.

    :param checkpoints: a folder, by its path from the JVM's own. The job goes on from the newest checkpoint there.
    """

    group: str
    jdbc_url: str
    table: str
    checkpoints: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """As the program takes them."""
        url = f"{self.jdbc_url}&reWriteBatchedInserts=true&stringtype=unspecified"
        return self.group, url, self.table, str(self.checkpoints)


class FlinkXa:
    """
    Jobs with the sink, in one JVM; a context manager, or :meth:`start` and :meth:`stop`.

    :param restart: Flink's strategy where a task fails.
    :param url: the same database as in the jobs, to clean up there.
    :raises MissingTool: if Maven, Java or its compiler is missing.
    """

    def __init__(
        self, bootstrap_servers: str, topic: str, partitions: int, jobs: Sequence[FlinkJob], url: str, restart: str
    ) -> None:
        self._jvm = Jvm("flink", flink_class_path(), _OPTIONS)
        self._url = url
        parallelism = str(min(os.cpu_count() or 2, partitions))
        self._arguments = (
            bootstrap_servers, topic, parallelism, str(_ROWS_AT_ONCE), str(_CHECKPOINT_MS), restart,
            *(argument for job in jobs for argument in job.arguments),
        )  # fmt: skip

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        with psycopg.connect(self._url, autocommit=True) as connection:
            for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

    def start(self) -> None:
        """Start the JVM; its jobs may still be starting."""
        self._jvm.start(_PROGRAM.stem, *self._arguments)

    def stop(self) -> None:
        """End it, and leave what it has prepared."""
        self._jvm.remove()

    def kill(self) -> None:
        """SIGKILL it; :meth:`start` has the same jobs go on."""
        self._jvm.end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Process id of its JVM."""
        return self._jvm.pid

    def check(self) -> None:
        """:raises RuntimeError: if the jobs have failed."""
        self._jvm.check()


def flink_xa(load: JsonLoad, url: str, jdbc_url: str, table: str) -> FlinkXa:
    """The sink, not yet started; a restart of its own would write rows twice, so there is none."""
    job = FlinkJob(f"flink-{uuid.uuid4()}", jdbc_url, table, Path("checkpoints"))
    return FlinkXa(load.bootstrap_servers, TOPIC, load.partitions, [job], url, restart="none")
