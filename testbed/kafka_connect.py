"""
Run Kafka Connect sinks.

Runs in: any process; Connect is one JVM of its own (standalone). Invariant: it lives as long as its
owner and no longer, and a task that failed raises an error, and does not look like a slow sink.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, Request, build_opener

from free_ports import free_port
from jvm import Jvm
from maven import jars_of_pom
from typing_extensions import Self

_POM = Path(__file__).resolve().parent / "connect" / "pom.xml"
_READY_SECONDS = 60.0
# Kafka's own scripts also give Connect two gigabytes; Java's parallel collector takes 5 % less CPU than their G1.
_OPTIONS = ("-Xms256m", "-Xmx2g", "-XX:+UseParallelGC", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
# Without a proxy, whatever the environment says: the server is on this machine.
_open = build_opener(ProxyHandler({})).open


def connect_class_path() -> list[Path]:
    """Kafka Connect and its connectors. :raises MissingTool:"""
    return jars_of_pom(_POM)


class KafkaConnect:
    """
    One Connect worker with its connectors; a context manager, or :meth:`start` and :meth:`stop`.

    :param connectors: the configuration of each, with ``name`` and ``connector.class``.
    :param worker: these are added to the worker's own settings, or replace them.
    :raises MissingTool: if Maven or Java is missing.
    """

    def __init__(
        self, bootstrap_servers: str, *connectors: Mapping[str, str], worker: Mapping[str, str] | None = None
    ) -> None:
        self._jvm = Jvm("connect", connect_class_path(), _OPTIONS)
        self._connectors = connectors
        self._address = f"http://127.0.0.1:{free_port()}"
        self._worker = {
            "bootstrap.servers": bootstrap_servers,
            "listeners": self._address,
            "offset.storage.file.filename": str(self._jvm.home / "offsets"),
            "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
            "value.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
            # All plugins are on the class path, and each declares itself in its jar.
            "plugin.discovery": "service_load",
            "connector.client.config.override.policy": "All",
            **(worker or {}),
        }

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> Self:
        """Return once the connectors were accepted; their tasks may still be starting."""
        worker = self._jvm.home / "worker.properties"
        worker.write_text("".join(f"{name}={value}\n" for name, value in self._worker.items()))
        files = []
        for connector in self._connectors:
            files.append(self._jvm.home / f"{connector['name']}.json")
            files[-1].write_text(json.dumps(connector))
        try:
            self._jvm.start("org.apache.kafka.connect.cli.ConnectStandalone", str(worker), *map(str, files))
            self._wait_until_accepted()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop, commit the consumer's offsets, and delete the directory."""
        self._jvm.remove()

    def kill(self) -> None:
        """SIGKILL it; :meth:`start` starts the same connectors again."""
        self._jvm.end(signal.SIGKILL)

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._jvm.pid

    def check(self) -> None:
        """:raises RuntimeError: if the worker has ended, or if a connector or one of its tasks has failed."""
        self._jvm.check()
        for connector in self._connectors:
            if failure := self.failure_of(connector["name"]):
                raise RuntimeError(f"{connector['name']} has failed: {failure}")

    def failure_of(self, name: str) -> str | None:
        """Why a connector or one of its tasks has failed; None where they go on."""
        with _open(f"{self._address}/connectors/{name}/status", timeout=10) as answer:
            status = json.load(answer)
        return next((p["trace"] for p in (status["connector"], *status["tasks"]) if p["state"] == "FAILED"), None)

    def restart_failed(self, name: str) -> None:
        """Restart what has failed of a connector."""
        restart = f"{self._address}/connectors/{name}/restart?includeTasks=true&onlyFailed=true"
        _open(Request(restart, method="POST"), timeout=10).close()

    def _wait_until_accepted(self) -> None:
        until = time.monotonic() + _READY_SECONDS
        while time.monotonic() < until:
            try:
                return self.check()
            except URLError:
                # No server yet, or (404) one that has not read the connector's file.
                time.sleep(0.2)
        raise RuntimeError(f"Kafka Connect did not answer within {_READY_SECONDS:.0f} s: {self._jvm.log_end()}")
