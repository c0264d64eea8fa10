"""
Run a real Spark cluster on one machine: a master and workers, each a JVM of its own, as in Spark's sbin.

Runs in: any process. Invariant: each worker has a host of its own (another loopback address, or a network namespace),
because Spark never runs a task twice on one host; and what a worker has started ends with it.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import pyspark
from free_ports import free_port
from jvm import Jvm
from spark_classes import driver_jvm_options
from typing_extensions import Self

_START_SECONDS = 120.0
_EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"
# Spark's own scripts set these two; without them a worker does not find the jars for its executors.
_SPARK_HOME = os.environ.get("SPARK_HOME") or str(Path(pyspark.__file__).parent)
_ENVIRONMENT = {"SPARK_HOME": _SPARK_HOME, "SPARK_SCALA_VERSION": "2.13"}
# Of this process's environment, executors get only what a login would give them: no PYTHONPATH, no PG*.
_PASSED_ON = ("PATH", "HOME", "LANG", "JAVA_HOME", "TMPDIR")


class Worker:
    """
    One worker and the executors that it has started.

    :param host: the address at which it and its executors listen.
    :param within: a command that starts another one elsewhere, such as ``ip netns exec NAME``.
    """

    def __init__(self, master: str, host: str, cores: int, memory_mb: int, within: Sequence[str] = ()) -> None:
        env = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        env |= _ENVIRONMENT | {"SPARK_LOCAL_IP": host}
        self.host = host
        self._jvm = Jvm("spark-worker", _jars(), _options(), env=env, within=within)
        env["SPARK_LOCAL_DIRS"] = str(self._jvm.home / "local")
        arguments = ("--host", host, "--webui-port", "0", "--cores", str(cores), "--memory", f"{memory_mb}M")
        work = ("--work-dir", str(self._jvm.home / "work"))
        self._jvm.start("org.apache.spark.deploy.worker.Worker", *arguments, *work, master)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._jvm.pid

    def has_registered(self) -> bool:
        """Whether the master has taken it."""
        self._jvm.check()
        return "Successfully registered with master" in self._jvm.log_text()

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks here."""
        return [one for one in self._processes() if _runs(one, _EXECUTOR)]

    def kill_executors(self) -> int:
        """SIGKILL the executors; the worker reports that, and starts others. How many they were."""
        executors = self.executors()
        for executor in executors:
            with suppress(psutil.NoSuchProcess):
                executor.kill()
        psutil.wait_procs(executors, timeout=30)
        return len(executors)

    def kill(self) -> None:
        """SIGKILL the worker and all that it has started, at once: its host has lost power."""
        processes = self._processes()
        # The worker first, or it would start other executors.
        self._jvm.end(signal.SIGKILL)
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=30)
        self._jvm.remove()

    def decommission(self) -> None:
        """Say that it will go away soon, as the agent of a spot instance does."""
        os.kill(self.pid, signal.SIGPWR)

    def shuffle_files(self) -> list[Path]:
        """What map tasks have left here for later stages."""
        return [path for path in (self._jvm.home / "local").rglob("shuffle_*") if path.suffix in {".data", ".index"}]

    def log_text(self) -> str:
        """What the worker has printed."""
        return self._jvm.log_text()

    def executor_logs(self) -> str:
        """What its executors and their Python workers have printed."""
        logs = sorted((self._jvm.home / "work").glob("app-*/*/stderr"))
        return "\n".join(log.read_text(errors="replace") for log in logs)

    def _processes(self) -> list[psutil.Process]:
        # Executors and their Python daemons have process groups of their own, but no session.
        return [one for one in psutil.process_iter() if one.pid != self.pid and _session_of(one) == self.pid]


class StandaloneCluster:
    """
    A master and the workers that were added; a context manager.

    :param host: the address at which the master listens; workers and drivers must reach it.
    :raises MissingTool: if Java is missing.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.host = host
        self.workers: list[Worker] = []
        env = {**os.environ, **_ENVIRONMENT, "SPARK_LOCAL_IP": host}
        self._jvm = Jvm("spark-master", _jars(), _options(), env=env)
        self._port = free_port()

    def __enter__(self) -> Self:
        arguments = ("--host", self.host, "--port", str(self._port), "--webui-port", "0")
        self._jvm.start("org.apache.spark.deploy.master.Master", *arguments)
        self._wait_for(lambda: "New state: ALIVE" in self._jvm.log_text(), "the master was ready")
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
        self._jvm.remove()

    @property
    def master(self) -> str:
        """What drivers set as ``spark.master``."""
        return f"spark://{self.host}:{self._port}"

    def add_workers(
        self, *hosts: str, cores: int = 1, memory_mb: int = 1024, within: Mapping[str, Sequence[str]] | None = None
    ) -> list[Worker]:
        """Start workers, one at each host, and return once the master has them."""
        places = within or {}
        new = [Worker(self.master, host, cores, memory_mb, places.get(host, ())) for host in hosts]
        self.workers += new
        for worker in new:
            self._wait_for(worker.has_registered, f"the worker at {worker.host} was registered")
        return new

    def lose(self, worker: Worker) -> None:
        """Kill a worker for good."""
        self.workers.remove(worker)
        worker.kill()

    def _wait_for(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _START_SECONDS
        while not condition():
            self._jvm.check()
            if time.monotonic() > until:
                raise TimeoutError(f"Waited {_START_SECONDS:.0f} s in vain until {what}: {self._jvm.log_end()}")
            time.sleep(0.05)


def _jars() -> list[Path]:
    return [Path(_SPARK_HOME) / "jars" / "*"]


def _options() -> list[str]:
    return [
        "-Xmx256m",
        *driver_jvm_options().split(),
        # A worker goes when SIGPWR says so, and the master starts executors again however often they are killed.
        "-Dspark.decommission.enabled=true",
        "-Dspark.deploy.maxExecutorRetries=-1",
        "-Dspark.master.rest.enabled=false",
    ]


def _runs(process: psutil.Process, name: str) -> bool:
    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return name in process.cmdline()
    return False


def _session_of(process: psutil.Process) -> int:
    with suppress(ProcessLookupError):
        return os.getsid(process.pid)
    return 0
