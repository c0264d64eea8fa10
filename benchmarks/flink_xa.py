"""
Write the topic with Flink's JDBC sink and XA transactions.

Runs on the driver, with Flink in a JVM of its own. Invariant: no prepared transaction outlives the sink, because it
would lock its table for ever.
"""

from __future__ import annotations

import os
import subprocess
import uuid
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


class FlinkXa:
    """
    The sink; a context manager. A consumer group of its own reads the topic from the beginning.

    :param url: the same database as ``jdbc_url``, to clean up there.
    :raises MissingTool: if Maven, Java or its compiler is missing.
    """

    def __init__(self, load: JsonLoad, url: str, jdbc_url: str, table: str) -> None:
        self._jvm = Jvm("flink", flink_class_path(), _OPTIONS)
        self._url = url
        self._arguments = (
            load.bootstrap_servers,
            TOPIC,
            f"flink-{uuid.uuid4()}",
            f"{jdbc_url}&reWriteBatchedInserts=true&stringtype=unspecified",
            table,
            str(min(os.cpu_count() or 2, load.partitions)),
            str(_ROWS_AT_ONCE),
            str(_CHECKPOINT_MS),
        )

    def __enter__(self) -> Self:
        self._jvm.start(_PROGRAM.stem, *self._arguments)
        return self

    def __exit__(self, *_: object) -> None:
        self._jvm.remove()
        with psycopg.connect(self._url, autocommit=True) as connection:
            for (gid,) in connection.execute("SELECT gid FROM pg_prepared_xacts").fetchall():
                connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))

    @property
    def pid(self) -> int:
        """Process id of its JVM."""
        return self._jvm.pid

    def check(self) -> None:
        """:raises RuntimeError: if the job has failed."""
        self._jvm.check()
