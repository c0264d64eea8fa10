"""
How does a test get a receiver, and what does the line to it carry?

Runs in: pytest; the receiver is a process of its own. Invariant: no receiver outlives its test.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import wire
from received import OPTIONS
from stopped import entries, write_checkpoint

from pgonce.sink.data_source.receiver import launch
from pgonce.sink.data_source.receiver.line import Receiver
from pgonce.sink.options import SinkOptions, parse_options


@pytest.fixture
def started_receivers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """The receivers that the test has started, in their order; they end with it."""
    processes = []
    popen = subprocess.Popen

    def noted(command, **arguments):
        process = popen(command, **arguments)
        if "pgonce.sink.data_source.receiver.process" in " ".join(command):
            processes.append(process)
        return process

    monkeypatch.setattr(subprocess, "Popen", noted)
    monkeypatch.setattr(launch, "_running", {})
    # As Spark sets it for its workers.
    monkeypatch.setenv("SPARK_REUSE_WORKER", "1")
    yield processes
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def receiver_options(url: str, tmp_path: Path, started_receivers: object) -> Callable[..., SinkOptions]:
    """Makes the options of a query that has planned batches 0 to 2, whose transactions begin with the first body."""
    folder = write_checkpoint(tmp_path / "checkpoint", entries(0, 1, 2))

    def make(**changes: str) -> SinkOptions:
        given = {
            **OPTIONS,
            "url": url,
            "checkpointLocation": str(folder),
            "receiver": "auto",
            **changes,
        }
        return parse_options(given, overwrite=False)

    return make


class Between:
    """
    Stands on the line to a receiver, passes everything on, and keeps what it has seen.

    :param to_receiver: so many bytes of each line are passed on to the receiver, and the line is cut.
    :param from_receiver: the same, of what the receiver says.
    """

    def __init__(self, receiver: Receiver, *, to_receiver: int | None = None, from_receiver: int | None = None) -> None:
        self._receiver = receiver
        self._to_receiver, self._from_receiver = to_receiver, from_receiver
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.heard: list[bytearray] = []
        self.answered: list[bytearray] = []
        self.receiver = replace(receiver, port=self._listening.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more lines."""
        wire.close(self._listening)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listening.accept()
                answerer = socket.create_connection((self._receiver.host, self._receiver.port))
                self.heard.append(bytearray())
                self.answered.append(bytearray())
                for source, sink, limit, heard in (
                    (caller, answerer, self._to_receiver, self.heard[-1]),
                    (answerer, caller, self._from_receiver, self.answered[-1]),
                ):
                    threading.Thread(target=self._pass, args=(source, sink, limit, heard), daemon=True).start()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket, limit: int | None, heard: bytearray) -> None:
        with suppress(OSError):
            while said := source.recv(65536):
                passed = said if limit is None else said[: max(0, limit - len(heard))]
                heard += passed
                sink.sendall(passed)
                if len(passed) < len(said):
                    break
        wire.close(source, sink)
