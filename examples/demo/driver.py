"""
Start and kill the demo's streaming job.

Runs in the demo's own process; the job is a session of its own. Invariant: a kill is SIGKILL, and nothing of the job
outlives it: not its JVM, and not its Python workers, which leave its process group but not its session.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil  # type: ignore[import-untyped]

JOB = Path(__file__).with_name("job.py")
REAL_TIME_JOB = Path(__file__).with_name("real_time_job.py")


def spark_settings(jars: Sequence[Path]) -> Mapping[str, str]:
    """What a cluster's configuration would contain; the job itself sets nothing."""
    settings = {
        "spark.master": "local[2]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        # No name lookups: a machine may not resolve its own name.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    return {**settings, "spark.jars": ",".join(map(str, jars))} if jars else settings


class Workplace:
    """A directory for all that jobs write outside Postgres: checkpoint, log, Spark's temporary files."""

    def __init__(self, directory: Path, jars: Sequence[Path] = ()) -> None:
        self.checkpoint = directory / "checkpoint"
        self.log = directory / "job.log"
        self.directory = directory
        temporary = directory / "tmp"
        temporary.mkdir()
        properties = directory / "spark.properties"
        properties.write_text("".join(f"{name} {value}\n" for name, value in spark_settings(jars).items()))
        # A JVM that is killed leaves its temporary files and its statistics; the compiler's first tier starts sooner.
        java = f"-Djava.io.tmpdir={temporary} -XX:-UsePerfData -XX:TieredStopAtLevel=1"
        self.environment = {
            **os.environ,
            "JAVA_TOOL_OPTIONS": f"{os.environ.get('JAVA_TOOL_OPTIONS', '')} {java}".strip(),
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYTHONSAFEPATH": "1",
            "PYSPARK_SUBMIT_ARGS": f"--properties-file {shlex.quote(str(properties))} pyspark-shell",
            "SPARK_LOCAL_DIRS": str(temporary),
            "TMPDIR": str(temporary),
        }


class Driver:
    """A job as a running process."""

    def __init__(self, workplace: Workplace, job: Path, arguments: Sequence[str]) -> None:
        command = [sys.executable, str(job), "--checkpoint", str(workplace.checkpoint), *arguments]
        self._log = workplace.log
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=workplace.directory,
                env=workplace.environment,
                start_new_session=True,
            )

    @property
    def exit_status(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    def last_words(self) -> str:
        """The end of what it printed."""
        return self._log.read_text(errors="replace")[-4000:]

    def sigkill(self) -> None:
        """SIGKILL the process group (Python and JVM), then what is left of the session; return when all is gone."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        until = time.monotonic() + 30
        while left := [process for process in psutil.process_iter() if self._is_ours(process)]:
            if time.monotonic() > until:
                raise TimeoutError(f"These outlived SIGKILL by 30 s: {left}")
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            time.sleep(0.01)

    def _is_ours(self, process: psutil.Process) -> bool:
        with suppress(ProcessLookupError, PermissionError, psutil.NoSuchProcess):
            return os.getsid(process.pid) == self._process.pid and process.status() != psutil.STATUS_ZOMBIE
        return False
