"""
What `pgonce serve` costs Postgres, and how soon its page is there, with 1, 30 and 300 queries.

Runs against a Postgres of its own that logs each statement: `make bench-serve`. Invariant: the server is `pgonce serve`
as a process, with its defaults; ten pages are open, and ask for what is new every five seconds. CPU is that of
processes, so that other work on the machine changes it little; of ten answers, the quickest one counts.
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
_STATEMENT = re.compile(r"LOG:  (?:statement|execute)\b")


def main() -> None:
    """Measure each number of queries, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=60)
    seconds = parser.parse_args().seconds
    table = Table(title=f"pgonce serve, {BROWSERS} pages open, {seconds:g} s each")
    columns = ("queries", "statements/min", "Postgres CPU s/min", "CPU s/min", "page ms", "page kB", "metrics ms")
    for name in columns:
        table.add_column(name, justify="right")
    for queries in (1, 30, 300):
        table.add_row(str(queries), *measure(queries, seconds))
    console = Console()

    console.print(table)


def measure(queries: int, seconds: float) -> Iterator[str]:
    """The cells of one line."""
    with EmbeddedPostgres(settings={"log_statement": "all"}) as server:
        ensure_ledger(server.uri())
        fill(server.uri(), queries, batches=720, seconds=5)
        postgres = psutil.Process(server.pid)
        with running(server.tcp_uri()) as (port, process):
            page = [timed(port, "/") for _ in range(10)]
            metrics = [timed(port, "/metrics") for _ in range(10)]
            opened = [threading.Thread(target=look_on, args=[port, seconds], daemon=True) for _ in range(BROWSERS)]
            for each in opened:
                each.start()
            before = statements(server), cpu_seconds(postgres), cpu_seconds(process)
            time.sleep(seconds)
            after = statements(server), cpu_seconds(postgres), cpu_seconds(process)
    count, in_postgres, own = ((b - a) * 60 / seconds for a, b in zip(before, after, strict=True))
    yield f"{count:.0f}"
    yield f"{in_postgres:.1f}"
    yield f"{own:.1f}"
    yield f"{1000 * min(took for took, _ in page):.0f}"
    yield f"{median(size for _, size in page) / 1000:.0f}"
    yield f"{1000 * min(took for took, _ in metrics):.0f}"


@contextmanager
def running(url: str) -> Iterator[tuple[int, psutil.Process]]:
    """The server, once it has looked."""
    port = free_port()
    command = [sys.executable, "-m", "pgonce", "serve", "--url", url, "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not is_well(port):
            time.sleep(0.1)
        yield port, psutil.Process(process.pid)
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


def look_on(port: int, seconds: float) -> None:
    """An open page: it asks for what is new every five seconds."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        timed(port, "/")
        time.sleep(5)


def statements(server: EmbeddedPostgres) -> int:
    """How many statements the server has been sent, BEGIN and COMMIT among them."""
    return len(_STATEMENT.findall(server.log.read_text()))


def cpu_seconds(process: psutil.Process) -> float:
    """What a process and those that it has started have used. (Of those that have ended, nothing.)"""
    used = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    return sum(times.user + times.system for times in used)


if __name__ == "__main__":
    main()
