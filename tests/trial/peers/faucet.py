"""
faucet-stream, which writes rows and offsets in one transaction: a process and a shell that supervises it for each lane.

Runs in: the trial. Invariant: what ends is started again, three times in a row at most.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from support.fixtures.driver import wait_until
from trial.peers.ways import Lane
from trial.peers.writers import END_SECONDS, Source, WithFolder


class FaucetWriter(WithFolder):
    """A process of faucet-stream for each lane, and a shell that starts it again, three times in a row at most."""

    _SUPERVISED = """
    failures=0
    while :; do
        began=$(date +%s)
        faucet run "$0" && [ -e finish ] && exit 0
        [ $(($(date +%s) - began)) -lt 10 ] || failures=0
        failures=$((failures + 1))
        [ $failures -le 3 ] || exit 1
        sleep 2
    done
    """

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        self._started: list[dict[str, subprocess.Popen[bytes]]] = []

    def start(self) -> None:
        shells = {}
        for lane in self.source.lanes:
            pipeline = self.source.directory / f"{lane.name}.json"
            pipeline.write_text(json.dumps(self._pipeline(lane)))
            with self._log_of(lane).open("ab") as log:
                shells[lane.name] = subprocess.Popen(
                    ["sh", "-c", self._SUPERVISED, pipeline],
                    cwd=self.source.directory, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        self._started.append(shells)

    def _pipeline(self, lane: Lane) -> dict[str, object]:
        source = self.source
        kafka = {
            "brokers": source.servers,
            "topics": [source.topic],
            "group_id": lane.name,
            "value_format": {"type": "json"},
            "auto_offset_reset": "earliest",
            # It ends when nothing has come for so long, as until the broker lets go of a member that was killed.
            "idle_timeout": 20,
            "session_timeout": 6,
        }
        table = {
            "connection_url": source.urls[lane.name],
            "table_name": f"{lane.name}_rows",
            "column_mapping": "auto_map",
            "batch_size": 1000,
        }
        return {
            "version": 1,
            "name": lane.name,
            "delivery": "exactly_once",
            "pipeline": {
                "source": {"type": "kafka", "config": kafka},
                "transforms": [{"type": "flatten", "config": {"separator": "__"}}],
                "sink": {"type": "postgres", "config": table},
                "state": {"type": "file", "config": {"path": str(self.progress / lane.name)}},
            },
        }

    def _log_of(self, lane: Lane) -> Path:
        return self.source.directory / f"{lane.name}.log"

    def _kill(self, shells: dict[str, subprocess.Popen[bytes]]) -> None:
        for shell in shells.values():
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()

    def kill(self) -> None:
        self._kill(self._started[-1])

    def kill_first(self) -> None:
        self._kill(self._started[-2])

    def processes(self) -> list[psutil.Process]:
        shells = [psutil.Process(shell.pid) for shell in self._started[-1].values()]
        return [process for shell in shells for process in (shell, *shell.children(recursive=True))]

    def failures(self) -> dict[str, str]:
        found = {}
        for lane in self.source.lanes:
            if self._started[-1][lane.name].poll():
                found[lane.name] = self._log_of(lane).read_text(errors="replace").strip().splitlines()[-1]
        return found

    def finish(self, *, all_there: Callable[[], bool]) -> dict[str, str]:
        (self.source.directory / "finish").touch()
        running = self._started[-1]
        wait_until(lambda: all(shell.poll() is not None for shell in running.values()), END_SECONDS)
        late = [name for name, shell in running.items() if shell.poll() is None]
        return {**self.failures(), **dict.fromkeys(late, "it did not come to its end")}

    def close(self) -> None:
        for shells in self._started:
            self._kill(shells)
