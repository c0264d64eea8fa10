"""
Run a schema registry: Apicurio's, which answers as Confluent's does and keeps its schemas in memory.

Runs in: any process; the registry is one JVM of its own. Invariant: it lives as long as its owner and no longer, and
leaves no process and no directory.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Mapping, Sequence

from free_ports import free_port
from jvm import Jvm
from maven import unpacked_artifact
from typing_extensions import Self

_REGISTRY = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"
_READY_SECONDS = 60.0
_KIND = "application/vnd.schemaregistry.v1+json"


class SchemaRegistry:
    """
    One registry; a context manager.

    :raises MissingTool: if Maven or Java is missing.
    """

    def __init__(self) -> None:
        self._port = free_port()
        options = "-Xmx512m", f"-Dquarkus.http.port={self._port}", "-Dquarkus.http.host=127.0.0.1"
        self._jvm = Jvm("registry", list(unpacked_artifact(_REGISTRY).glob("*-runner.jar")), options)

    @property
    def address(self) -> str:
        """What Confluent's clients take for ``schema.registry.url``."""
        return f"http://127.0.0.1:{self._port}/apis/ccompat/v7"

    def register(
        self, subject: str, schema: str, kind: str = "AVRO", references: Sequence[Mapping[str, object]] = ()
    ) -> int:
        """Register a schema as the newest version of its subject, as a serializer does, and give its id."""
        body = json.dumps({"schema": schema, "schemaType": kind, "references": list(references)}).encode()
        path = f"{self.address}/subjects/{subject}/versions"
        asked = urllib.request.Request(path, body, {"Content-Type": _KIND})
        with urllib.request.urlopen(asked, timeout=30) as answer:
            return int(json.load(answer)["id"])

    def __enter__(self) -> Self:
        self._jvm.start("io.quarkus.runner.GeneratedMain")
        until = time.monotonic() + _READY_SECONDS
        while time.monotonic() < until and self._jvm.runs():
            try:
                urllib.request.urlopen(f"{self.address}/subjects", timeout=5).close()
            except OSError:
                time.sleep(0.2)
            else:
                return self
        said = self._jvm.log_end()
        self._jvm.remove()
        raise RuntimeError(f"The registry did not answer within {_READY_SECONDS:.0f} s; the end of its log: {said}")

    def __exit__(self, *_: object) -> None:
        self._jvm.remove()
