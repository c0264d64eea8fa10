"""
Run a Spark Connect server.

Runs in: any process; the server's JVM and its Python workers are in a session of their own. Invariant: the server lives
as long as its owner and no longer; a SIGKILL may leave its workers to themselves, as when only the server is shot.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil
import pyspark
from free_ports import free_port
from safety_net import SafetyNet
from spark_classes import OF_THIS_PYTHON, driver_jvm_options
from typing_extensions import Self

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
# PySpark's modules that run a data source for the JVM.
_OF_DATA_SOURCES = ("create_data_source", "write_into_data_source", "python_streaming_sink_runner")


class ConnectServer:
    """
    One server at a time, always at the same port, and a temporary directory that stays until :meth:`remove`.

    :param settings: Spark's settings.
    :param python_path: folders that the workers import from, in addition to what is installed.
    """

    def __init__(self, settings: Mapping[str, str], *python_path: Path) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="pgonce-connect-"))
        self.port = free_port()
        self._settings = {
            **settings,
            "spark.connect.grpc.binding.port": str(self.port),
            "spark.local.dir": str(self.home / "local"),
            "spark.sql.warehouse.dir": str(self.home / "warehouse"),
        }
        self._environment = {
            **os.environ,
            **OF_THIS_PYTHON,
            "SPARK_HOME": str(self._spark_home()),
            "SPARK_SUBMIT_OPTS": driver_jvm_options(),
            "PYTHONPATH": os.pathsep.join(map(str, python_path)),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._net: SafetyNet | None = None
        self._session = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()

    def _spark_home(self) -> Path:
        """
        PySpark's own, without the archive from which workers would import PySpark.

        Each worker compiles what it takes from there, which more than doubles its start (2.0 s of CPU instead of 0.8),
        and Spark waits ten seconds for it to begin.
        """
        home = self.home / "spark"
        home.mkdir()
        for part in Path(pyspark.__file__).parent.iterdir():
            if part.name != "python":
                (home / part.name).symlink_to(part)
        return home

    @property
    def url(self) -> str:
        """What a client gives to ``SparkSession.builder.remote``."""
        return f"sc://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return when it listens."""
        submit = Path(self._environment["SPARK_HOME"]) / "bin" / "spark-submit"
        settings = [part for name, value in self._settings.items() for part in ("--conf", f"{name}={value}")]
        main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        with self._log.open("ab") as log:
            # The script becomes the JVM.
            self._process = subprocess.Popen(
                [str(submit), *settings, *main],
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.home,
                env=self._environment,
                start_new_session=True,
            )
        self._session = self._process.pid
        self._net = SafetyNet(self._process.pid, signal.SIGKILL, self.home)
        until = time.monotonic() + _START_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"The Connect server did not start; the end of its log: {self.log()[-4000:]}")
            time.sleep(0.1)

    def sigkill(self, *, workers: bool = True) -> None:
        """
        SIGKILL the JVM, and return when it is gone.

        :param workers: False leaves the Python workers to themselves.
        """
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None
        if workers:
            for worker in self.workers():
                with suppress(psutil.NoSuchProcess):
                    worker.kill()
        if self._net:
            self._net.release()
            self._net = None

    def workers(self) -> list[psutil.Process]:
        """The Python workers that live, also those of a server that was killed."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, ProcessLookupError, PermissionError):
                is_ours = os.getsid(process.pid) == self._session and process.pid != self._session
                if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def foreach_batch_workers(self) -> list[psutil.Process]:
        """Those of them that run a foreachBatch function."""
        return self._workers_of("foreach_batch_worker")

    def end_idle_workers(self) -> None:
        """
        SIGKILL the workers that Spark keeps for each session that has used a data source, to the server's end.

        They take some 70 MB for each session, so a server of many sessions would use up the machine's memory. No query
        may be running; a later session gets workers of its own.
        """
        for worker in self._workers_of(*_OF_DATA_SOURCES):
            with suppress(psutil.NoSuchProcess):
                worker.kill()

    def _workers_of(self, *modules: str) -> list[psutil.Process]:
        found = []
        for worker in self.workers():
            with suppress(psutil.NoSuchProcess):
                if any(module in part for part in worker.cmdline() for module in modules):
                    found.append(worker)
        return found

    def remove(self) -> None:
        """Stop the server in good order, if it still runs, and delete its directory."""
        if self._process:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_SECONDS)
        self.sigkill()
        shutil.rmtree(self.home, ignore_errors=True)

    def log(self) -> str:
        """All that server and workers have printed."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    @property
    def _log(self) -> Path:
        return self.home / "log"

    def _listens(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False
