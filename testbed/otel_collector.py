"""
Run a real OpenTelemetry Collector, which takes OTLP over HTTP and gRPC and writes what it got into a file.

Runs in: any process, which is its parent. It is built once into `.build/`, from the modules that `otelcol/go.mod` names
(Go needed; `MissingTool` says so in one sentence). Invariant: it lives as long as its owner and no longer.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from free_ports import free_ports
from maven import MissingTool, build_once
from safety_net import SafetyNet
from typing_extensions import Self

_SOURCE = Path(__file__).parent / "otelcol"
_READY_SECONDS = 60.0


class OtelCollector:
    """
    One collector; a context manager.

    :raises MissingTool: if Go is missing, or the collector cannot be built.
    """

    def __init__(self) -> None:
        self._program = program()
        self.http, self.grpc = (f"127.0.0.1:{port}" for port in free_ports(2))
        self._directory = Path(tempfile.mkdtemp(prefix="pgonce-otelcol-"))
        self._told = self._directory / "told.jsonl"

    def __enter__(self) -> Self:
        config = {
            "receivers": {
                "otlp": {"protocols": {"http": {"endpoint": self.http}, "grpc": {"endpoint": self.grpc}}},
            },
            "exporters": {"file": {"path": str(self._told)}},
            "service": {
                "pipelines": {kind: {"receivers": ["otlp"], "exporters": ["file"]} for kind in ("traces", "metrics")},
            },
        }
        # JSON is YAML.
        file = self._directory / "config.yaml"
        file.write_text(json.dumps(config))
        with (self._directory / "log").open("w") as log:
            self._process = subprocess.Popen([self._program, "--config", f"file:{file}"], stdout=log, stderr=log)
        self._net = SafetyNet(self._process.pid, signal.SIGKILL, self._directory)
        until = time.monotonic() + _READY_SECONDS
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self._directory / "log").read_text())
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    def stop(self) -> None:
        """Have it write all that it has, and end."""
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait(60)
            self._net.release()

    def told(self, kind: str) -> Iterator[dict[str, Any]]:
        """The resources of what it got, such as ``resourceSpans``; each as OTLP has it in JSON."""
        for line in self._told.read_text().splitlines():
            yield from json.loads(line).get(kind, ())

    def _listens(self) -> bool:
        host, port = self.http.split(":")
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1):
            return True
        return False


def program() -> Path:
    """The collector, built now or earlier."""
    go = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
    if go is None:
        raise MissingTool("Go is missing, which builds the OpenTelemetry Collector: apt-get install golang.")
    key = b"".join((_SOURCE / name).read_bytes() for name in ("go.mod", "go.sum", "main.go"))

    def build(place: Path) -> None:
        done = subprocess.run(
            [go, "build", "-o", str(place / "otelcol"), "."],
            cwd=_SOURCE,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise MissingTool(f"The OpenTelemetry Collector cannot be built: {done.stderr[-500:]}")

    return build_once("otelcol", key, build, ".otelcol.lock") / "otelcol"
