"""
How does Flink's JDBC sink with XA transactions write the topic?

Runs on the driver, with Flink in a JVM of its own. Invariant: no prepared transaction outlives it: it would hold its
table for ever.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path
from typing import Self

import psycopg
from jvm import Jvm
from kafka_json import TOPIC, JsonLoad
from maven import MissingTool, build_once, jars_of_pom, java
from psycopg import sql

# Both tasks prepare a transaction a checkpoint.
POSTGRES_SETTINGS = {"max_prepared_transactions": "64"}
_PROGRAM = Path(__file__).parent / "flink" / "FlinkXa.java"
_ROWS_AT_ONCE = 5_000
# Rows are seen at each checkpoint, so this is how finely a time is known; a second or two were no quicker.
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


class FlinkXa:
    """
    The sink; a context manager. A consumer group of its own reads the topic from the beginning.

    :raises MissingTool: Maven, Java or its compiler is missing.
    """

    def __init__(self, load: JsonLoad, url: str, jdbc_url: str, table: str) -> None:
        jars = jars_of_pom(_PROGRAM.parent / "pom.xml")
        self._jvm = Jvm("flink", [_compiled(jars), *jars], _OPTIONS)
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
        """:raises RuntimeError: the job has failed."""
        if not self._jvm.runs():
            raise RuntimeError(f"Flink has ended; the end of its log: {self._jvm.log_end()}")


def _compiled(jars: list[Path]) -> Path:
    """Directory of the program's classes."""
    compiler = Path(java()).with_name("javac")
    if not compiler.exists():
        raise MissingTool("Java's compiler is missing: install a JDK (openjdk-17-jdk), not only a JRE.")

    def compile_into(directory: Path) -> None:
        class_path = os.pathsep.join(map(str, jars))
        command = [str(compiler), "-cp", class_path, "-d", str(directory), str(_PROGRAM)]
        subprocess.run(command, check=True, cwd=directory)

    return build_once(_PROGRAM.stem, _PROGRAM.read_bytes(), compile_into)
